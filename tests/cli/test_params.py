"""What several commands take, and how a wrong value is refused."""

import pytest
from click.testing import CliRunner

from ingero.cli.commands.query import command as query


@pytest.mark.parametrize("option", ["--timeout", "--since", "--clock-skew-threshold"])
def test_a_wrong_duration_is_a_usage_error_that_names_the_option(option: str) -> None:
    result = CliRunner().invoke(query, [option, "soon"])
    assert result.exit_code == 2
    assert (
        f"Invalid value for '{option}': 'soon' is not a duration such as 500ms, 10s or 1h30m"
        in result.output
    )
