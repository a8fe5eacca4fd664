# Builds one program of a Go module from its source, once: go_program MODULE@VERSION PACKAGE NAME [go build options].
# A copy of the module is the main module, so that its own replace lines hold. Sourced by the other scripts.
go_source() { # MODULE@VERSION FOLDER: a writable copy without vendored modules
  local dir
  dir=$(go mod download -json "$1" | sed -n 's/.*"Dir": "\(.*\)".*/\1/p')
  rm -rf "$2" && mkdir -p "$(dirname "$2")" && cp -r "$dir" "$2" && chmod -R u+w "$2" && rm -rf "$2/vendor"
}

go_program() {
  [ -x "$cache/bin/$3" ] && return
  go_source "$1" "$cache/src/$3"
  (cd "$cache/src/$3" && GOWORK=off CGO_ENABLED=0 go build -mod=mod -buildvcs=false "${@:4}" -o "$cache/bin/$3.new" "$2")
  mv "$cache/bin/$3.new" "$cache/bin/$3" && rm -rf "$cache/src/$3"
}
