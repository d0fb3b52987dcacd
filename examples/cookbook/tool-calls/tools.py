"""The tools of recipe.yaml, on data that is invented. Their signatures are what the model sees."""

from typing import Annotated, Literal

from msgspec import Meta

FORECASTS = {"Lima": "sunny, 24 °C", "Oslo": "rain, 6 °C", "Kyoto": "cloudy, 17 °C"}
RATES = {"EUR": 1.0, "USD": 1.1, "JPY": 160.0}
PRODUCTS = {"running shoes": 75.0, "kettle": 30.0, "tea": 6.5}


def weather(place: str, day: Literal["today", "tomorrow"] = "today") -> str:
    """The weather forecast for a place."""
    if place not in FORECASTS:
        raise LookupError(f"no forecast for {place}, only for {', '.join(FORECASTS)}")
    return FORECASTS[place]


def convert_currency(
    amount: float, source: Literal["EUR", "USD", "JPY"], target: Literal["EUR", "USD", "JPY"]
) -> float:
    """Converts an amount of money at today's rate."""
    return round(amount / RATES[source] * RATES[target], 2)


def search_products(query: str, max_price: Annotated[float, Meta(description="in euros")] | None = None) -> list[str]:
    """Searches the catalogue of a shop."""
    found = {name: price for name, price in PRODUCTS.items() if query in name}
    return [f"{name}: {price} €" for name, price in found.items() if max_price is None or price <= max_price]


def create_event(title: str, start: str, minutes: Annotated[int, Meta(ge=5)] = 60) -> str:
    """Adds an event to the user's calendar."""
    return f"added {title!r}, {start}, {minutes} minutes"


def send_message(to: str, text: Annotated[str, Meta(max_length=300)]) -> str:
    """Sends a text message to one of the user's contacts."""
    return f"sent to {to}"
