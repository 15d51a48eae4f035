"""The table of choices: every name in it exists, every row has its reason, and the page is made from it."""

import argparse
import re
import subprocess
import sys
from pathlib import Path

import pytest

import mmpos
from mmpos import scaling
from mmpos.diagnostics.advice import ADVICE, TOPICS, advice, markdown
from mmpos.diagnostics.commands import recommend
from mmpos.factory import list_encodings

DOCS = Path(__file__).parents[2] / "docs"


@pytest.mark.parametrize("row", ADVICE, ids=[row.situation for row in ADVICE])
def test_a_row_names_what_there_is_and_says_why(row):
    known = {*list_encodings(), *mmpos.__all__, *scaling.__all__, "per"}
    assert set(re.findall(r"`(\w+)`", row.choice)) <= known
    assert all(row)
    assert "|" not in "".join(row)


@pytest.mark.parametrize("row", ADVICE, ids=[row.situation for row in ADVICE])
def test_a_source_is_a_paper_or_a_section_of_the_documents(row):
    if not row.url.startswith("https://arxiv.org/abs/"):
        page, _, anchor = row.url.partition("#")
        titles = re.findall(r"^#+ (.*)", (DOCS / page).read_text(encoding="utf-8"), flags=re.MULTILINE)
        assert not anchor or anchor in {re.sub(r"[^\w -]", "", title).lower().replace(" ", "-") for title in titles}


def test_what_people_ask_for_is_there():
    chosen = {row.situation: row.choice for row in ADVICE}
    assert len(chosen) == len(ADVICE) >= 20
    assert {"any", "text", "images", "video", "sound", "series", "mixed"} == set(TOPICS)
    assert "YaRN" in chosen["a rotary model, longer than trained"]


def test_the_page_is_made_from_the_table():
    text = (DOCS / "choose.md").read_text(encoding="utf-8")
    shown = text.partition("<!-- choices -->")[2].partition("<!-- /choices -->")[0]
    assert shown.strip() == markdown(ADVICE)


def test_topics_come_with_what_holds_for_any():
    found = advice(["video"])
    assert {row.topic for row in found} == {"any", "video"}
    assert found == [row for row in ADVICE if row.topic in ("any", "video")]
    assert advice() == list(ADVICE)
    with pytest.raises(ValueError, match="unknown topic 'vidoe'; known: any, text"):
        advice(["vidoe"])


def printed(words, capsys):
    parser = argparse.ArgumentParser()
    recommend.add_arguments(parser)
    recommend.run(parser.parse_args(words), [])
    return capsys.readouterr().out


def test_the_command_prints_every_row(capsys):
    text = printed([], capsys)
    for row in ADVICE:
        assert f"{row.topic}: {row.situation}\n  take     {row.choice.replace('`', '')}\n" in text
        assert row.reason in text
        assert row.url in text
    assert text.count("  because  ") == len(ADVICE)


def test_the_command_prints_the_table_of_the_page(capsys):
    assert printed(["series", "--markdown"], capsys).strip() == markdown(advice(["series"]))


def test_the_command_line():
    run = subprocess.run([sys.executable, "-m", "mmpos", "recommend", "text"], capture_output=True, text=True)
    assert run.returncode == 0, run.stderr
    assert run.stdout.startswith("any: ")
    assert "text: a decoder" in run.stdout
