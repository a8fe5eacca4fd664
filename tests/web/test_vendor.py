"""The modules of others are those that were vendored, with their licences."""

import hashlib
from importlib.resources import files

DIGESTS = {
    "LICENSE.htm.txt": "740725f7252e750af735d0028cc534970772f513331e9f68150fede8fb3ce00f",
    "LICENSE.preact.txt": "1fe6958409c8c257a70c587a18b6f7f412b179b456630790d30b2ec9a8e4b7d4",
    "LICENSE.uplot.txt": "8f989229699b4fe2f1a0432d0e9edc338a8a911e250e2d1b01ecd770a5f5b1bd",
    "hooks.mjs": "13518e8899847145604866b14612f994ed70d894a423b64694b6e764d7b956c9",
    "htm.mjs": "ab33dd3f38059b9be4d5f5350128eefb2356639c4e0bbe9d9e8b3ba75847e9e4",
    "preact.mjs": "225d7a773766e6fb2cfcc45274fe41d2059f5782f3f2c4569aa5132a2d3a2902",
    "uplot.css": "df630c6a8d6f8eeaff264b50f73ce5b114f646ffd9a0bb74f049b0a00135fa04",
    "uplot.mjs": "8301d1a4fcc08355d4ff7e8c87cc4a4e13cc4da93ba50a20816005488c0c5f6e",
}


def test_vendored_files_are_the_ones_that_were_taken() -> None:
    folder = files("ingero.web").joinpath("vendor")
    found = {
        each.name: hashlib.sha256(each.read_bytes()).hexdigest()
        for each in folder.iterdir()
        if each.name != "README.md"
    }
    assert found == DIGESTS
