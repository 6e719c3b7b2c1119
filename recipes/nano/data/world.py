"""Capitals and regions of countries, from the `countryinfo` package."""

import json
import random
from pathlib import Path

from .chat import Chat, single


def countries(folder: Path) -> list[dict[str, str]]:
    """Name, capital, region and demonym of every country that has them in plain letters."""
    found = []
    for path in sorted((folder / "countryinfo" / "data").glob("*.json")):
        data = json.loads(path.read_text())
        row = {
            key: str(data.get(key) or "") for key in ("name", "capital", "region", "demonym", "population")
        }
        row["region"] = row["region"].replace("Americas", "the Americas")
        if row["name"] and row["capital"] and row["region"] and (row["name"] + row["capital"]).isascii():
            found.append(row)
    return found


def weights(rows: list[dict[str, str]]) -> list[float]:
    """Large countries are asked about more often, none is left out."""
    return [1.0 + (float(row["population"] or 0) / 2e7) ** 0.5 for row in rows]


def make(rng: random.Random, rows: list[dict[str, str]], share: list[float]) -> Chat:
    """One question about a country."""
    row = rng.choices(rows, share)[0]
    name, capital, region = row["name"], row["capital"], row["region"]
    roll = rng.random()
    if roll < 0.6:
        ask = rng.choice(
            [
                "What is the capital of {}?",
                "What's the capital of {}?",
                "Which city is the capital of {}?",
                "Tell me the capital of {}.",
                "Name the capital of {}.",
                "Capital of {}?",
            ]
        )
        return single("capitals", ask.format(name), f"The capital of {name} is {capital}.")
    if roll < 0.75:
        ask = rng.choice(["{} is the capital of which country?", "Which country has {} as its capital?"])
        return single("capitals", ask.format(capital), f"{capital} is the capital of {name}.")
    if roll < 0.9:
        ask = rng.choice(["Where is {}?", "In which part of the world is {}?", "Which continent is {} in?"])
        return single("regions", ask.format(name), f"{name} is in {region}.")
    other = rng.choice([region, rng.choice(rows)["region"]])
    answer = "Yes." if other == region else f"No, {name} is in {region}."
    return single("regions", f"Is {name} in {other}?", answer)
