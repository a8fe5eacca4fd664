"""A whole Kubernetes node in namespaces of its own; the machine stays as it is.

    unshare -m -n -p -f --mount-proc --kill-child python kubernetes_node.py WORK PROGRAMS

The first process of the namespaces starts etcd, API server, controllers, scheduler, containerd and
kubelet, answers DNS, and prints `ready`. Everything ends with it. There is no kube-proxy: DNS
answers the name of a service with the addresses of its pods.
"""

import json
import os
import socket
import ssl
import struct
import subprocess
import sys
import threading
import time
import urllib.request
from pathlib import Path
from typing import Any

ADDRESS = "10.99.0.1"
BRIDGE = "10.88.0.1"
API = "https://127.0.0.1:16443"
NODE = "node-1"
TOKEN = "of-a-test"
# the kubelet insists on these; it sees files of ours in their place
SYSCTLS = {
    "kernel/panic": 10,
    "kernel/panic_on_oops": 1,
    "vm/overcommit_memory": 1,
    "vm/panic_on_oom": 0,
    "kernel/keys/root_maxkeys": 1000000,
    "kernel/keys/root_maxbytes": 25000000,
}
# of the machine, covered by empty ones: containers, volumes and logs lie there
COVERED = ("/run", "/opt", "/var/lib", "/var/log")
KUBECONFIG = f"""\
apiVersion: v1
kind: Config
clusters: [{{name: c, cluster: {{server: "{API}", insecure-skip-tls-verify: true}}}}]
users: [{{name: u, user: {{token: {TOKEN}}}}}]
contexts: [{{name: x, context: {{cluster: c, user: u}}}}]
current-context: x
"""
CONTAINERD = """\
version = 3
root = "{work}/containerd"
state = "/run/containerd"
[grpc]
  address = "{work}/containerd.sock"
[plugins.'io.containerd.cri.v1.runtime']
  restrict_oom_score_adj = true
  [plugins.'io.containerd.cri.v1.runtime'.cni]
    bin_dirs = ["/usr/lib/cni"]
    conf_dir = "{work}/cni"
  [plugins.'io.containerd.cri.v1.runtime'.containerd.runtimes.runc]
    runtime_type = "io.containerd.runc.v2"
    [plugins.'io.containerd.cri.v1.runtime'.containerd.runtimes.runc.options]
      BinaryName = "/usr/sbin/runc"
      SystemdCgroup = false
[plugins.'io.containerd.cri.v1.images']
  snapshotter = "overlayfs"
  [plugins.'io.containerd.cri.v1.images'.pinned_images]
    sandbox = "localhost/pause:1"
"""
NETWORK = {
    "cniVersion": "1.0.0",
    "name": "pods",
    "plugins": [
        {
            "type": "bridge",
            "bridge": "cni0",
            "isGateway": True,
            "ipMasq": False,
            "hairpinMode": True,
            "ipam": {
                "type": "host-local",
                "ranges": [[{"subnet": "10.88.0.0/24"}]],
                "routes": [{"dst": "0.0.0.0/0"}],
            },
        }
    ],
}
KUBELET = {
    "apiVersion": "kubelet.config.k8s.io/v1beta1",
    "kind": "KubeletConfiguration",
    "failCgroupV1": False,
    "cgroupDriver": "cgroupfs",
    "cgroupRoot": "/",
    "failSwapOn": False,
    "authentication": {"anonymous": {"enabled": True}, "webhook": {"enabled": False}},
    "authorization": {"mode": "AlwaysAllow"},
    "enforceNodeAllocatable": [],
    "localStorageCapacityIsolation": False,
    "makeIPTablesUtilChains": False,
    "oomScoreAdj": 0,
    "featureGates": {"KubeletInUserNamespace": True},
    "resolvConf": "",
    "clusterDNS": [BRIDGE],
    "clusterDomain": "cluster.local",
    "evictionHard": {"memory.available": "100Mi"},
}


def run(*command: str) -> None:
    subprocess.run(command, check=True)


def prepare_machine(work: Path) -> None:
    """Cover what Kubernetes writes to, and make a network."""
    run("mount", "--make-rprivate", "/")
    run("mount", "--make-rshared", "/")
    for folder in COVERED:
        run("mount", "-t", "tmpfs", "tmpfs", folder)
    for folder in ("/var/log/pods", "/run/netns", "/var/lib/disk"):
        Path(folder).mkdir(parents=True)
    for name, value in SYSCTLS.items():
        stand_in = work / name.replace("/", "_")
        stand_in.write_text(f"{value}\n")
        if Path("/proc/sys", name).exists():
            run("mount", "--bind", str(stand_in), f"/proc/sys/{name}")
    run("ip", "link", "set", "lo", "up")
    run("ip", "address", "add", f"{ADDRESS}/32", "dev", "lo")
    run("ip", "route", "add", "default", "dev", "lo")


def write_files(work: Path) -> None:
    for folder in ("etcd", "cni", "log"):
        (work / folder).mkdir()
    run("openssl", "genrsa", "-out", str(work / "account.key"), "2048")
    public = ("-pubout", "-out", str(work / "account.pub"))
    run("openssl", "rsa", "-in", str(work / "account.key"), *public)
    (work / "tokens.csv").write_text(f'{TOKEN},admin,admin,"system:masters"\n')
    (work / "kubeconfig").write_text(KUBECONFIG)
    (work / "containerd.toml").write_text(CONTAINERD.format(work=work))
    (work / "cni" / "10.conflist").write_text(json.dumps(NETWORK))
    runtime = {"containerRuntimeEndpoint": f"unix://{work}/containerd.sock"}
    (work / "kubelet.yaml").write_text(json.dumps(KUBELET | runtime))


def ask(path: str) -> Any:
    """Return an answer of the API server."""
    context = ssl._create_unverified_context()
    request = urllib.request.Request(API + path, headers={"Authorization": f"Bearer {TOKEN}"})
    with urllib.request.urlopen(request, timeout=5, context=context) as reply:
        return reply.read()


def wait_for(what: str, condition: Any) -> None:
    end_s = time.monotonic() + 180
    while True:
        try:
            if condition():
                return
        except (OSError, subprocess.CalledProcessError):
            pass
        if time.monotonic() > end_s:
            sys.exit(f"{what} is not ready")
        time.sleep(0.2)


def start_all(work: Path, programs: Path) -> None:
    def start(program: str, *options: str) -> None:
        found = programs / program
        with (work / "log" / f"{program}.log").open("w") as log:
            subprocess.Popen(
                [str(found) if found.exists() else program, *options],
                stdout=log,
                stderr=log,
                env=os.environ | {"PATH": f"{programs}:{os.environ['PATH']}:/usr/sbin:/sbin"},
            )

    store = "http://127.0.0.1:12379"
    urls = ("--listen-client-urls", store, "--advertise-client-urls", store)
    peer = ("--listen-peer-urls", "http://127.0.0.1:12380")
    start("etcd", "--data-dir", str(work / "etcd"), "--unsafe-no-fsync", *urls, *peer)
    start(
        "kube-apiserver", f"--etcd-servers={store}", "--secure-port=16443",
        "--bind-address=0.0.0.0", f"--advertise-address={ADDRESS}", f"--cert-dir={work}/api",
        "--service-cluster-ip-range=10.96.0.0/16", "--service-account-issuer=https://k",
        f"--service-account-key-file={work}/account.pub",
        f"--service-account-signing-key-file={work}/account.key", "--authorization-mode=RBAC",
        f"--token-auth-file={work}/tokens.csv", "--allow-privileged=true",
        "--kubelet-preferred-address-types=InternalIP",
    )  # fmt: skip
    start("containerd", "-c", str(work / "containerd.toml"))
    wait_for("the API server", lambda: ask("/readyz"))
    kubeconfig = f"--kubeconfig={work}/kubeconfig"
    start(
        "kube-controller-manager", kubeconfig, "--leader-elect=false",
        f"--service-account-private-key-file={work}/account.key",
    )  # fmt: skip
    start("kube-scheduler", kubeconfig, "--leader-elect=false")
    control = [str(programs / "ctr"), "-a", f"{work}/containerd.sock", "-n", "k8s.io", "images"]
    wait_for("containerd", lambda: subprocess.run([*control, "ls"], check=True))
    for archive in sorted((work / "images").glob("*.tar")):
        run(*control, "import", str(archive))
    start(
        "kubelet", f"--config={work}/kubelet.yaml", kubeconfig, f"--root-dir={work}/kubelet",
        f"--cert-dir={work}/kubelet/pki", f"--hostname-override={NODE}", f"--node-ip={ADDRESS}",
    )  # fmt: skip


def pods_of(name: str) -> list[str]:
    """Return the addresses of the ready pods of a service, `NAME.NAMESPACE.svc.cluster.local`."""
    labels = name.lower().rstrip(".").split(".")
    if len(labels) != 5 or labels[2:] != ["svc", "cluster", "local"]:
        return []
    path = f"/apis/discovery.k8s.io/v1/namespaces/{labels[1]}/endpointslices"
    slices = json.loads(ask(f"{path}?labelSelector=kubernetes.io/service-name%3D{labels[0]}"))
    return [
        address
        for each in slices["items"]
        for endpoint in each.get("endpoints") or []
        if endpoint.get("conditions", {}).get("ready")
        for address in endpoint["addresses"]
    ]


def answer_dns() -> None:
    """Answer questions for IPv4 addresses; every other name does not exist."""
    server = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    server.bind(("0.0.0.0", 53))
    while True:
        query, client = server.recvfrom(512)
        labels, at = [], 12
        while query[at]:
            labels.append(query[at + 1 : at + 1 + query[at]].decode("ascii", "replace"))
            at += 1 + query[at]
        question = query[12 : at + 5]
        try:
            found = pods_of(".".join(labels))
        except OSError:
            found = []
        listed = found if question[-4:-2] == b"\0\1" else []
        flags = 0x8180 if found else 0x8183
        head = query[:2] + struct.pack("!5H", flags, 1, len(listed), 0, 0)
        records = (
            b"\xc0\x0c" + struct.pack("!HHIH", 1, 1, 1, 4) + socket.inet_aton(each)
            for each in listed
        )
        server.sendto(head + question + b"".join(records), client)


def main() -> None:
    work, programs = map(Path, sys.argv[1:])
    prepare_machine(work)
    write_files(work)
    start_all(work, programs)
    threading.Thread(target=answer_dns, daemon=True).start()
    wait_for("the node", lambda: ask(f"/api/v1/nodes/{NODE}"))
    print("ready", flush=True)
    while True:  # the first process inherits what others leave
        try:
            os.wait()
        except ChildProcessError:
            time.sleep(1)


if __name__ == "__main__":
    main()
