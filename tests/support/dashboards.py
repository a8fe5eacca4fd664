"""The dashboards as Grafana would query them."""

VALUES = {
    "$__rate_interval": "1m", "$__range_s": "3600", "$__range": "1h", "$cluster_id": ".*",
    "$ingero_job": ".*", "$per_usd": "1", "$currency": "USD",
}  # fmt: skip


def filled(expression: str) -> str:
    """Replace the variables of Grafana."""
    for name, value in VALUES.items():
        expression = expression.replace(name, value)
    return expression
