"""Rate tables and provider rules: F073, F074, vector V25."""

from pathlib import Path

import pytest

from ingero.config.providers import ProviderLookup, ProviderRules, load_providers
from ingero.config.rates import load_rates, parse_rates, read_rates
from ingero.errors import ConfigError

VALID = """
currency_name: USD
currency_symbol: $
fallback_rate: 1.5
providers:
  onprem:
    NVIDIA H200: 1.8
"""


def test_f074_all_sixteen_rows_are_shipped_with_a_date() -> None:
    table = load_rates()
    assert (len(table.providers), table.models, table.currency_name) == (5, 16, "USD")
    assert table.find("lambda", "NVIDIA H100 80GB HBM3") == 2.49
    assert table.as_of
    assert table.sources.keys() == table.providers.keys()


def test_f074_onprem_and_overrides_come_from_a_file(tmp_path: Path) -> None:
    path = tmp_path / "rates.yaml"
    path.write_text(VALID + "  aws:\n    NVIDIA L4 24GB: 0.5\n")
    table = load_rates(path)
    assert table.find("onprem", "NVIDIA H200") == 1.8
    assert table.find("ec2", "NVIDIA L4 24GB") == 0.5
    assert table.find("ec2", "NVIDIA H100 80GB HBM3") == 12.29
    assert table.find("ec2", "unheard of") == 1.5


def test_a_gpu_without_a_price_has_none_rather_than_zero() -> None:
    assert load_rates().find("onprem", "NVIDIA H200") is None


def test_aws_is_ec2_and_people_type_short_names() -> None:
    table = load_rates()
    assert table.find("AWS", "NVIDIA H100 80GB HBM3") == 12.29
    assert table.guess("aws", "h100") == 12.29
    assert table.guess(None, "H100") == 2.49
    assert table.guess("ec2", "A100 40GB") == 3.27
    assert table.guess("ec2", "nvidia a100-sxm4-40gb") == 3.27


@pytest.mark.parametrize(
    ("provider", "typed"),
    [
        (None, "H200"),  # not GH200
        (None, "B200"),
        ("lambda", "L4"),  # not L40S
        (None, "H100 PCIe"),
        (None, "80GB"),
        (None, "NVIDIA"),
        (None, ""),
    ],
)
def test_a_short_name_is_never_the_price_of_another_product(
    provider: str | None, typed: str
) -> None:
    assert load_rates().guess(provider, typed) is None


@pytest.mark.parametrize(
    ("printed", "rate"),
    [
        ("NVIDIA L4", 0.85),
        ("NVIDIA H100 80GB HBM3", 12.29),
        ("NVIDIA A100-SXM4-80GB", 4.10),
        ("nvidia  l4 24gb", 0.85),
        ("NVIDIA H200", None),
        ("NVIDIA H100 PCIe", None),
        ("NVIDIA A100 80GB PCIe", None),
        ("NVIDIA B200", None),
        ("NVIDIA GB200", None),
        ("AMD Instinct MI300X", None),
        ("NVIDIA L40", None),
        ("NVIDIA", None),
        ("", None),
    ],
)
def test_names_as_drivers_print_them_are_understood(printed: str, rate: float | None) -> None:
    """No price is guessed for a product that the table does not have."""
    assert load_rates().find("ec2", printed) == rate


def test_a_model_without_a_price_says_which_setting_gives_it_one() -> None:
    table = load_rates()
    assert table.hint("aws", "NVIDIA H200", "rates_file") == (
        "no price is known for NVIDIA H200 at ec2: put it into the file of rates_file "
        "(`ingero rates check FILE` checks the file)"
    )
    assert "set fleet.provider" in table.hint(None, "NVIDIA H200", "rates_file")


@pytest.mark.parametrize(
    ("before", "after", "complaint"),
    [
        ("fallback_rate: 1.5", "fallback_rate: -1", "fallback_rate: -1 is not a rate"),
        ("fallback_rate: 1.5", "", "fallback_rate: None is not a rate"),
        ("fallback_rate: 1.5", "fallback_rate: .nan", "is not a rate"),
        (
            "NVIDIA H200: 1.8",
            "NVIDIA H200: cheap",
            "providers.onprem.NVIDIA H200: 'cheap' is not a rate",
        ),
        ("currency_name: USD", "currency_name: ''", "currency_name: missing or empty"),
        ("  onprem:\n    NVIDIA H200: 1.8", "", "providers: needs at least one provider"),
        ("providers:", "providers: [", "not valid YAML"),
    ],
)
def test_v25_a_table_that_would_make_a_wrong_price_is_refused(
    before: str, after: str, complaint: str
) -> None:
    with pytest.raises(ConfigError, match=complaint):
        parse_rates(VALID.replace(before, after), "x.yaml")


def test_a_missing_file_and_a_list_say_so(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="cannot read"):
        read_rates(tmp_path / "none.yaml")
    with pytest.raises(ConfigError, match="is a mapping"):
        parse_rates("- 1", "x.yaml")
    with pytest.raises(ConfigError, match=r"^x\.yaml: not valid YAML: .*invalid") as caught:
        parse_rates(b"\xc7\x00\xff", "x.yaml")
    assert "\n" not in str(caught.value)
    with pytest.raises(ConfigError, match=r"^x\.yaml: nested too deeply$"):
        parse_rates("[" * 20_000, "x.yaml")


def test_f073_provider_by_narrowest_network_then_label_then_agent(tmp_path: Path) -> None:
    """F073."""
    path = tmp_path / "node_providers.yaml"
    path.write_text(
        "addresses:\n  10.0.0.0/8: onprem\n  10.1.2.3: lambda\nlabels:\n  pool=a100: gcp\n"
    )
    lookup = load_providers(path)
    assert lookup.find("10.1.2.3") == "lambda"
    assert lookup.find("10.9.9.9", said="aws") == "onprem"
    assert lookup.find("192.0.2.1", {"pool": "a100"}, said="aws") == "gcp"
    assert lookup.find("192.0.2.1", said="aws") == "ec2"
    assert lookup.find("not an address") is None


@pytest.mark.parametrize(
    "rules", [ProviderRules(addresses={"ten": "x"}), ProviderRules(labels={"pool": "x"})]
)
def test_rules_that_cannot_match_are_refused(rules: ProviderRules) -> None:
    with pytest.raises(ConfigError):
        ProviderLookup(rules)
