"""The same questions over HTTP, MCP and OpenAPI, asked by official clients and a checker."""

from collections.abc import Iterator

import pytest
import schemathesis
from hypothesis import HealthCheck, settings
from schemathesis.specs.openapi.checks import positive_data_acceptance
from tests.support.echo_service import TOKEN, RunningEcho
from tests.support.mcp_client import mcp_client
from tests.support.questions_data import score
from tests.support.waiting import PATIENCE_S

from ingero.storage.events.schema import READABLE

NAMED_IN_THE_SEED = {"event_history", "find_outlier_nodes", "run_analysis", "get_cost"}


@pytest.fixture(scope="module")
def echo(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningEcho]:
    with RunningEcho(
        tmp_path_factory.mktemp("surfaces"), bearer_rate=10_000, bearer_burst=100_000
    ) as running:
        for number in range(6):
            running.send(score("prod", f"gpu-{number}", [0.9 if number != 4 else 0.3]))
        yield running


@pytest.mark.parametrize("path", ["/", "/mcp"])
async def test_f081_f084_f121_mcp_answers_like_http(echo: RunningEcho, path: str) -> None:
    async with mcp_client(echo, path) as client:
        listed = {tool.name for tool in (await client.list_tools()).tools}
        assert {f"fleet.cluster.{name}" for name in NAMED_IN_THE_SEED} <= listed
        assert listed == {
            tool["name"] for tool in echo.get("/api/v2/tools/list").json["data"]["tools"]
        }
        for name in sorted(listed - {"fleet.cluster.run_analysis"}):
            over_mcp = await client.call_tool(name, {"cluster_id": "prod"})
            assert not over_mcp.is_error, over_mcp
            assert over_mcp.structured_content == echo.answer(name, cluster_id="prod")
        ranked = (await client.call_tool("fleet.cluster.find_stragglers", {})).structured_content[
            "stragglers"
        ]
        assert ranked[0]["node_id"] == "gpu-4"
        rows = await client.call_tool(
            "fleet.cluster.run_analysis", {"sql": "SELECT count(*) FROM events"}
        )
        assert rows.structured_content["rows"] == [[6]]
        refused = await client.call_tool("fleet.cluster.run_analysis", {"sql": "DROP TABLE events"})
        assert refused.is_error
        assert "only one SELECT" in refused.content[0].text


async def test_f082_f083_the_prompt_begins_with_the_summary_and_ends_with_the_node(
    echo: RunningEcho,
) -> None:
    async with mcp_client(echo, "/mcp") as client:
        assert [prompt.name for prompt in (await client.list_prompts()).prompts] == ["investigate"]
        text = (await client.get_prompt("investigate")).messages[0].content.text
    asked = [word for word in text.replace(":", " ").split() if word.startswith("fleet.cluster.")]
    assert asked[0] == "fleet.cluster.summary"
    assert text.endswith("Node to open next: gpu-4")


async def test_the_schema_is_a_resource(echo: RunningEcho) -> None:
    async with mcp_client(echo, "/mcp") as client:
        (resource,) = (await client.list_resources()).resources
        text = (await client.read_resource(str(resource.uri))).contents[0].text
    for table in READABLE:
        assert f"## {table.name}\n" in text
        assert all(comment in text for _, _, comment in table.columns)
    assert "audit_log" not in text


def test_f085_openapi_describes_what_is_served(echo: RunningEcho) -> None:
    document = echo.get("/api/v2/openapi.json").json
    assert document["openapi"].startswith("3.1")
    tools = {tool["name"] for tool in echo.get("/api/v2/tools/list").json["data"]["tools"]}
    assert {f"/api/v2/tools/{name}" for name in tools} <= set(document["paths"])
    assert {"/api/versions", "/api/v2/sql", "/api/v2/health", "/api/v2/whoami", "/metrics"} <= set(
        document["paths"]
    )


def test_f085_schemathesis_has_no_finding(echo: RunningEcho) -> None:
    schema = schemathesis.openapi.from_dict(echo.get("/api/v2/openapi.json").json)
    schema.config.update(base_url=echo.url(), request_timeout=PATIENCE_S)
    headers = {"Authorization": f"Bearer {TOKEN}"}
    operations = [result.ok() for result in schema.get_all_operations()]
    assert len(operations) >= 10
    for operation in operations:

        @settings(
            max_examples=8, deadline=None, suppress_health_check=list(HealthCheck), database=None
        )
        @schemathesis_case(operation)
        def check(case: schemathesis.Case) -> None:
            is_sql = "sql" in case.operation.label or "run_analysis" in case.operation.label
            # a schema cannot tell SQL from other text, so 400 is the right answer
            case.call_and_validate(
                headers=headers, excluded_checks=[positive_data_acceptance] if is_sql else []
            )

        check()


def schemathesis_case(operation: object) -> object:
    """Return `given` over the cases of one operation, valid and invalid."""
    from hypothesis import given

    modes = (schemathesis.GenerationMode.POSITIVE, schemathesis.GenerationMode.NEGATIVE)
    positive, negative = (operation.as_strategy(generation_mode=mode) for mode in modes)
    return given(case=positive | negative)
