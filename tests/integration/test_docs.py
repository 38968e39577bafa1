"""test_docs.py - what documents say is so: the README's program and scripts, the example configuration"""

import os
import subprocess
import tempfile

from ranks import PATIENCE_S, check, contains, equal, gwtest, main, program


def _read(*path):
    with open(os.path.join(gwtest.ROOT, *path), encoding="utf-8") as file:
        return file.read()


def the_program_of_the_README_is_the_example():
    example = _read("examples", "allreduce.c")
    shown = _read("README.md").split("```c\n")[1].split("```")[0]
    check(shown == example, "README.md shows another program than examples/allreduce.c")
    check(len(example.splitlines()) <= 40, f"examples/allreduce.c has {len(example.splitlines())} lines, 40 are allowed")


def the_README_names_scripts_that_can_be_run():
    readme = _read("README.md")
    for script in ("scripts/demo", "scripts/test"):
        contains(readme, script)
        check(os.access(os.path.join(gwtest.ROOT, script), os.X_OK), f"{script} cannot be run")


def a_host_without_a_CUDA_toolkit_can_build():
    """Nobody names a toolkit here, and no nvcc is on the PATH, as on most hosts that the README is for."""
    with tempfile.TemporaryDirectory(prefix="gw-test-") as folder:
        result = subprocess.run(["make", "-n", f"B={folder}/build", "programs"], cwd=gwtest.ROOT, capture_output=True,
                                text=True, env={"PATH": "/usr/bin:/bin"}, timeout=PATIENCE_S, check=False)
    check(result.returncode == 0, f"make ends with {result.returncode}: {result.stderr[:300]}")
    contains(result.stdout, "daemon/main.c")
    check("nvcc" not in result.stdout and "daemon/cuda/" not in result.stdout, "it would build what needs CUDA")


def the_example_configuration_is_what_the_daemon_prints():
    printed = subprocess.run([program("gradwired"), "--config=/dev/null", "--print-config"], capture_output=True,
                             text=True, env={}, timeout=PATIENCE_S, check=True).stdout
    equal(_read("etc", "gradwired.conf.example").splitlines(), printed.splitlines(), "etc/gradwired.conf.example")


def the_public_header_is_clean_in_cplusplus():
    for standard in ("c++11", "c++20"):
        result = subprocess.run(["g++", f"-std={standard}", "-Wall", "-Wextra", "-pedantic", "-Werror", "-fsyntax-only",
                                 "-I", program("include"), "-x", "c++", "-"], input="#include <gradwire.h>\n",
                                capture_output=True, text=True, timeout=PATIENCE_S, check=False)
        check(result.returncode == 0, f"-std={standard}: {result.stderr[:300]}")


if __name__ == "__main__":
    main(globals())
