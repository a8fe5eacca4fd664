"""`ingero rates`: show, check and update the prices of GPU hours."""

import asyncio
import hashlib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import click

from ingero.cli.params import AS_JSON
from ingero.cli.show.table import print_json, render_table
from ingero.cli.show.wrap import on_screen
from ingero.config.loader import MAX_CONFIG_BYTES
from ingero.config.rates import RateTable, load_rates, parse_rates, read_rates
from ingero.errors import AuthError, ConfigError, MalformedInput
from ingero.files import replace_file
from ingero.transport.fetch import fetch_https
from ingero.transport.tls import ClientTls, client_context


@click.group()
def command() -> None:
    """Show, check and update the prices of GPU hours by provider and model.

    The shipped prices are list prices, an upper bound of what you pay.

    \b
    Examples:
      ingero rates show
      ingero rates check my-rates.yaml
      ingero rates update --url https://prices.example/gpu_rates.yaml
    """


@command.command()
@click.option(
    "--file",
    "override",
    type=click.Path(path_type=Path),
    help="File with your own rates, which replace shipped ones.",
)
@AS_JSON
def show(override: Path | None, as_json: bool) -> None:
    """Show the rates in effect, with the date of each price.

    \b
    Examples:
      ingero rates show
      ingero rates show --file my-rates.yaml --json
    """
    table = load_rates(override)
    if as_json:
        print_json(
            _summary(table)
            | {"rates": {name: dict(rates) for name, rates in table.providers.items()}}
        )
        return
    rows = [
        (
            name,
            model,
            f"{rate:.2f}",
            table.sources.get(name, {}).get("as_of", table.as_of or "unknown"),
        )
        for name, rates in table.providers.items()
        for model, rate in rates.items()
    ]
    print(render_table(("provider", "GPU model", f"{table.currency_name}/GPU h", "as of"), rows))
    others = f"other models: {table.fallback_rate or 'no price shown'}"
    print(f"\n{on_screen(f'{others}; list prices, an upper bound of what you pay', '  ')}")


@command.command()
@click.argument("file", type=click.Path(path_type=Path))
@AS_JSON
def check(file: Path, as_json: bool) -> None:
    """Check your own rate table and print its digest.

    On-premises costs go under the provider `onprem`. The digest is the one that
    `ingero rates update --sha256` takes.

    \b
    Examples:
      ingero rates check my-rates.yaml
      ingero rates check my-rates.yaml --json
    """
    with _judged_input():
        table = read_rates(file)  # refuses what is not a regular file of a bounded size
    summary = _summary(table)
    summary |= {"sha256": hashlib.sha256(file.read_bytes()).hexdigest()}
    _print(summary, as_json)


@command.command()
@click.option("--url", required=True, help="HTTPS address of a rate table.")
@click.option(
    "--output",
    type=click.Path(path_type=Path),
    default=Path("gpu_rates.yaml"),
    show_default=True,
    help="File to replace once the new table is valid.",
)
@click.option("--sha256", "digest", help="SHA-256 digest that the table must have.")
@click.option(
    "--timeout",
    "timeout_s",
    type=click.FloatRange(1, 600),
    default=30.0,
    show_default=True,
    help="Timeout of the download in seconds.",
)
@click.option(
    "--ca-cert",
    type=click.Path(path_type=Path),
    help="Authority that signed the server's certificate.",
)
@AS_JSON
def update(
    url: str,
    output: Path,
    digest: str | None,
    timeout_s: float,
    ca_cert: Path | None,
    as_json: bool,
) -> None:
    """Fetch a rate table over TLS and replace OUTPUT when it is valid.

    A table may have at most 1 MiB.

    \b
    Examples:
      ingero rates update --url https://prices.example/gpu_rates.yaml
      ingero rates update --url https://prices.example/r.yaml --sha256 9f86d0… --output r.yaml
    """
    if not output.parent.is_dir():
        raise ConfigError(f"{output.parent} is not a folder; create it or choose another --output")
    context = client_context(ClientTls(ca=ca_cert)) if ca_cert is not None else None
    body = asyncio.run(
        fetch_https(url, timeout_s=timeout_s, max_bytes=MAX_CONFIG_BYTES, context=context)
    )
    found = hashlib.sha256(body).hexdigest()
    if digest is not None and digest.lower() != found:
        raise AuthError(f"{url} has digest {found}, not {digest}; {output} is unchanged")
    with _judged_input():
        table = parse_rates(body, url)
    summary = _summary(table) | {"sha256": found, "source": url, "output": str(output)}
    replace_file(output, body, new_mode=0o644)
    _print(summary, as_json)


@contextmanager
def _judged_input() -> Iterator[None]:
    """Report errors of a rate table as errors of the input, not of a setting."""
    try:
        yield
    except ConfigError as error:
        raise MalformedInput(str(error)) from None


def _summary(table: RateTable) -> dict[str, object]:
    return {
        "providers": len(table.providers),
        "models": table.models,
        "currency": table.currency_name,
        "as_of": table.as_of,
        "fallback_rate": table.fallback_rate,
    }


def _print(summary: dict[str, object], as_json: bool) -> None:
    if as_json:
        print_json(summary)
    else:
        print("\n".join(f"{key:>13}  {value}" for key, value in summary.items()))
