"""Prompts from JSON lines: what is accepted, and one clear line for what is not."""

import io
import json
import os
import threading
import time
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sinkscope.errors import UserError
from sinkscope.trace.prompts import Prompt, read_prompts, text_prompt


def read(text: str | bytes) -> list[Prompt]:
    return read_prompts("-", io.BytesIO(text.encode() if isinstance(text, str) else text))


def test_all_three_kinds_are_read() -> None:
    chat = [{"role": "user", "content": "Hi"}, {"role": "assistant", "content": ""}]
    lines = [
        {"id": "a", "prompt": "What?", "answer": 42},
        {"messages": chat, "id": 7},
        {"input_ids": [3, 0, 5]},
    ]
    text = "\n" + "\n  \n".join(json.dumps(line) for line in lines)
    assert read(text) == [
        Prompt("a", "What?", {"answer": 42}),
        Prompt("7", chat),
        Prompt("6", [3, 0, 5]),
    ]


def test_a_file_is_read_like_standard_input(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    content = '\ufeff{"prompt": "caf\u00e9 \u2028 same line"}\r\n'.encode()
    (tmp_path / "prompts.jsonl").write_bytes(content)
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(content)))
    expected = [Prompt("1", "caf\u00e9 \u2028 same line")]
    assert read_prompts(tmp_path / "prompts.jsonl") == expected
    assert read_prompts("-") == expected


@given(st.lists(st.text(st.characters(exclude_categories=["Cs"])), min_size=1))
def test_any_text_comes_through(texts: list[str]) -> None:
    ascii_lines = "\n".join(json.dumps({"prompt": text}) for text in texts)
    plain_lines = "\n".join(json.dumps({"prompt": text}, ensure_ascii=False) for text in texts)
    expected = [Prompt(str(number), text) for number, text in enumerate(texts, start=1)]
    assert read(ascii_lines) == read(plain_lines) == expected


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "standard input holds no prompts"),
        ("\n \n", "standard input holds no prompts"),
        ('{"prompt": "a"}\n{"prompt": \n', "line 2 is not JSON"),
        ("What is this?", "line 1 is not JSON"),
        ('["a"]', "line 1 holds a list; expected one object"),
        ("null", "line 1 holds null"),
        ("[" * 100_000, "line 1 is not JSON that can be read"),
        ('{"prompt": ' + "9" * 5000 + "}", "line 1 is not JSON that can be read"),
        ('\n{"id": "x"}', "line 2 needs one of prompt, messages and input_ids, got none"),
        ('{"prompt": "a", "messages": []}', "got prompt and messages"),
        ('{"prompt": 3}', "line 1: prompt must be text, got a number"),
        ('{"prompt": "\\ud800"}', "line 1: prompt is not valid Unicode"),
        ('{"messages": "Hi"}', "messages must be a list of messages, got text"),
        ('{"messages": []}', "messages must be a list of messages, got none"),
        ('{"messages": ["Hi"]}', "message 1 is str, wanted an object with role and content"),
        ('{"messages": [{"role": "user"}]}', "message 1 has no content"),
        ('{"messages": [{"role": "user", "content": ["a"]}]}', "message 1: a part of a content must be .*, got str"),
        ('{"input_ids": "1 2"}', "input_ids must be a list of token ids, got text"),
        ('{"input_ids": [1, -2]}', "input_ids must be integers from 0 on, got -2 as number 2"),
        ('{"input_ids": [1.0]}', r"got 1\.0 as number 1"),
        ('{"input_ids": [[1]]}', "got a list as number 1"),
        ('{"input_ids": [1e999]}', "got inf as number 1"),
        ('{"input_ids": [1' + "0" * 400 + "]}", "input_ids must be integers"),
        ('{"messages": [{"role": "user", "content": [{"type": "image"}]}]}', "part of the type 'image'"),
        ('{"prompt": "a", "id": null}', "id must be text or an integer, got null"),
        ('{"prompt": "a", "id": true}', "id must be text or an integer, got true or false"),
        ('{"prompt": "a", "id": ""}', "id must be text or an integer, got empty text"),
        ('{"prompt": "a", "id": "x"}\n\n{"prompt": "b", "id": "x"}', "line 3: the id 'x' is that of line 1 too"),
        ('{"prompt": "a", "id": 2}\n{"prompt": "b"}', "line 2: the id '2' is that of line 1 too"),
    ],
)
def test_what_is_wrong_is_said_in_one_line(text: str, message: str) -> None:
    with pytest.raises(UserError, match=message) as raised:
        read(text)
    assert "\n" not in str(raised.value)


def test_bytes_that_are_not_utf8_are_named() -> None:
    with pytest.raises(UserError, match=r"line 2 is not UTF-8 \(byte 13\)"):
        read(b'{"prompt": "a"}\n{"prompt": "\xe9"}')
    with pytest.raises(UserError, match="line 1 is not UTF-8"):
        read('{"prompt": "a"}'.encode("utf-16"))


def test_a_file_that_is_not_there_is_named(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"can't read the prompts .*none\.jsonl \(No such file"):
        read_prompts(tmp_path / "none.jsonl")
    with pytest.raises(UserError, match="Is a directory"):
        read_prompts(tmp_path)


def test_files_without_an_end_or_a_writer(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sinkscope.trace.prompts._PATIENCE", 0.2)
    os.mkfifo(tmp_path / "pipe")
    for path, said in ((tmp_path / "pipe", "nothing came out"), ("/dev/zero", "MiB"), ("/dev/urandom", "line 1")):
        with pytest.raises(UserError, match=said):
            read_prompts(path)
    for name in ("x" * 5000, "a\0b", "\ud800"):
        with pytest.raises(UserError, match="can't read the prompts") as raised:
            read_prompts(name)
        assert len(str(raised.value)) < 1000


def test_a_pipe_with_a_slow_writer_is_read() -> None:
    """As `--prompts <(command)` gives one."""
    reading, writing = os.pipe()

    def write() -> None:
        time.sleep(0.3)
        with os.fdopen(writing, "wb") as file:
            file.write(b'{"prompt": "a"}\n')
            time.sleep(0.3)
            file.write(b'{"prompt": "b"}\n')

    writer = threading.Thread(target=write)
    writer.start()
    assert [prompt.content for prompt in read_prompts(f"/dev/fd/{reading}")] == ["a", "b"]
    writer.join()
    os.close(reading)


@given(st.binary(max_size=60) | st.text(max_size=30).map(lambda text: f'{{"messages": {text}}}'.encode()))
def test_any_bytes(content: bytes) -> None:
    said = ""
    try:
        read(content)
    except UserError as error:
        said = str(error)
    assert "\n" not in said


def test_contents_in_parts_are_text() -> None:
    parts = [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]
    [prompt] = read(json.dumps({"messages": [{"role": "user", "content": parts}]}))
    assert prompt.content == [{"role": "user", "content": "ab"}]


def test_one_prompt_from_the_command_line() -> None:
    assert text_prompt("Hello") == [Prompt("1", "Hello")]
    with pytest.raises(UserError, match="the prompt is not valid Unicode"):
        text_prompt("caf\udce9")
