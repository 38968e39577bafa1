"""test_runner.py - tests/run itself: whatever goes wrong in a test program must not go unseen"""

import os
import shutil
import subprocess
import sys
import tempfile

from ranks import check, contains, equal, main

GOOD = "echo 'ok one'\necho '1 passed, 0 failed, 0 skipped'\n"


def _run(script, skipped=""):
    """Runs the runner on one program; returns its code, its last line and all it wrote."""
    folder = tempfile.mkdtemp(prefix="gw-test-")
    try:
        os.makedirs(f"{folder}/tests/integration")
        shutil.copy(os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "run"), f"{folder}/tests/run")
        for path, text in ((f"{folder}/tests/integration/test_it.sh", script), (f"{folder}/tests/skipped", skipped)):
            with open(path, "w", encoding="utf-8") as file:
                file.write(text)
        environment = {k: v for k, v in os.environ.items() if not k.endswith("SAN_OPTIONS")}
        result = subprocess.run([sys.executable, f"{folder}/tests/run"], capture_output=True, text=True, check=False,
                                env=dict(environment, BUILD=f"{folder}/build"))
        return result.returncode, result.stdout.splitlines()[-1], result.stdout
    finally:
        shutil.rmtree(folder)


def _caught(script, *parts, skipped=""):
    code, last, text = _run(script, skipped)
    equal(code, 1, f"exit code (it said: {text})")
    contains(last, " passed, ", " failed, ", " skipped")
    check(" 0 failed" not in last, f"the last line is {last!r}")
    contains(text, *parts)


def a_program_that_passes():
    code, last, _ = _run(GOOD)
    equal((code, last), (0, "1 passed, 0 failed, 0 skipped"), "what it says")


def a_test_that_fails():
    _caught("echo 'FAIL one: it rains'\necho '0 passed, 1 failed, 0 skipped'\nexit 1", "it rains")


def a_program_that_stops_in_the_middle():
    _caught("echo 'ok one'", "did not come to its last line")


def a_program_that_counts_wrong():
    _caught("echo 'ok one'\necho '2 passed, 0 failed, 0 skipped'", "its last line is")


def a_program_that_ends_with_an_error():
    _caught(GOOD + "exit 3", "exit status 3")


def a_program_that_is_killed():
    _caught("kill -SEGV $$", "SIGSEGV")


def a_program_that_prints_nothing():
    _caught("exit 0", "did not come to its last line")


def a_skipped_test_that_is_not_listed():
    _caught("echo 'skipped one: no luck'\necho '0 passed, 0 failed, 1 skipped'", "does not list it", "no luck")


def a_skipped_test_that_is_listed():
    code, last, _ = _run("echo 'skipped one: no luck'\necho '0 passed, 0 failed, 1 skipped'",
                         "integration/test_it: one - no luck here\n")
    equal((code, last), (0, "0 passed, 0 failed, 1 skipped"), "what it says")


def a_process_that_is_left_behind():
    _caught(GOOD + "sleep 60 &", "left processes behind")


def a_report_of_a_sanitizer_in_the_output():
    _caught(GOOD + "echo 'x.c:1:2: runtime error: shift'", "a sanitizer has a report")


def a_report_of_a_sanitizer_in_a_file():
    _caught(GOOD + "echo boom >\"$BUILD/report.1\"", "sanitizer report", "boom")


if __name__ == "__main__":
    main(globals())
