"""Many cases: killed in the middle and gone on with, nothing is run or counted twice."""

import json
import signal
import time
from pathlib import Path

import many
from command import hookpool, start

COUNT = 200


def lines(path: Path) -> list[str]:
    return path.read_text().splitlines() if path.exists() else []


def test_a_run_that_is_killed_and_gone_on_with_has_every_result_once(tmp_path: Path) -> None:
    many.write(tmp_path, COUNT)
    out = tmp_path / "out.jsonl"
    with start("eval", str(tmp_path), "--json", str(out)) as process:
        until = time.monotonic() + 60
        while len(lines(out)) < COUNT // 4 and time.monotonic() < until and process.poll() is None:
            time.sleep(0.005)
        process.send_signal(signal.SIGKILL)
        process.communicate(timeout=240)
    kept = lines(out)
    assert COUNT // 4 <= len(kept) < COUNT
    with out.open("a") as file:
        file.write(kept[-1][: len(kept[-1]) // 2])  # as a kill may leave it

    whole = sum(line.endswith("}") for line in kept)
    ended = hookpool("eval", str(tmp_path), "--resume", str(out), "--junit", str(tmp_path / "out.xml"))
    assert ended.code == 1
    assert f"has {whole} results of this evaluation" in ended.err
    last = ended.out.splitlines()[-1]
    assert last.startswith(f"{COUNT} cases: {COUNT * 9 // 10} passed, {COUNT // 10} failed in ")
    results = [json.loads(line) for line in lines(out)]
    assert len(results) == COUNT
    assert {result["id"] for result in results} == {f"{tmp_path}/cases.jsonl::case {number}" for number in range(COUNT)}
    assert (tmp_path / "out.xml").read_text().count("<testcase ") == COUNT

    again = hookpool("eval", str(tmp_path), "--resume", str(out), "--pool", "inline")
    assert (again.code, len(lines(out))) == (1, COUNT)
    assert again.out.splitlines()[-1].startswith(f"{COUNT} cases: ")
