"""Every check of the project, one session each: ``nox -l`` lists them."""

import nox

nox.options.sessions = ["tests", "lint", "types"]
nox.options.reuse_existing_virtualenvs = True

CHECKED_TORCH = "torch==2.13.0"


def install(session: nox.Session, torch: str, extra: str = "test") -> None:
    """Install `torch` first, so that the package's own range is already satisfied."""
    session.install(torch)
    session.install("-e", f".[{extra}]")


@nox.session
def tests(session: nox.Session) -> None:
    """The suite on the checked torch."""
    install(session, CHECKED_TORCH)
    session.run("pytest", "-n", "2", "--dist", "worksteal", *session.posargs)


@nox.session
def tests_newest(session: nox.Session) -> None:
    """The suite on the newest torch of the registry."""
    install(session, "torch")
    session.run("pytest", "-n", "2", "--dist", "worksteal", *session.posargs)


@nox.session
@nox.parametrize("cache", ["cold", "warm"])
def remembered(session: nox.Session, cache: str) -> None:
    """Torch's operator and module databases and the models, from an empty cache and a full one."""
    install(session, CHECKED_TORCH)
    suites = ("tests/opinfo", "tests/test_module_db.py", "tests/test_models.py")
    session.run("pytest", "-n", "2", f"--cache={cache}", *suites, *session.posargs)


@nox.session
def pieces(session: nox.Session) -> None:
    """All tests of deferred modules, made real piece by piece on threads, however small."""
    install(session, CHECKED_TORCH)
    session.run("pytest", "tests/deferred", "-n", "2", "--pieces", *session.posargs)


@nox.session(name="property")
def property_(session: nox.Session) -> None:
    """The generated programs, many more of them."""
    install(session, CHECKED_TORCH)
    programs = ("tests/property", "tests/deferred/test_init_programs.py")
    session.run("pytest", *programs, "-n", "2", "--hypothesis-profile=long", *session.posargs)


@nox.session
def lint(session: nox.Session) -> None:
    """Style and formatting."""
    session.install("ruff")
    session.run("ruff", "check", ".")
    session.run("ruff", "format", "--check", ".")


@nox.session
def types(session: nox.Session) -> None:
    """Strict types of the package."""
    install(session, CHECKED_TORCH, "cli")
    session.install("mypy")
    session.run("mypy")


@nox.session
def docs(session: nox.Session) -> None:
    """Every code block of README.md and docs/, run; its output compared."""
    install(session, CHECKED_TORCH)
    session.run("pytest", "tests/docs", *session.posargs)


@nox.session
def examples(session: nox.Session) -> None:
    """Every example, run to its asserts."""
    install(session, CHECKED_TORCH)
    session.run("pytest", "tests/examples", *session.posargs)


@nox.session
def sweep(session: nox.Session) -> None:
    """Construction of all of transformers against the meta device and FakeTensorMode."""
    install(session, CHECKED_TORCH)
    session.run("python", "tests/bench/sweep.py", *session.posargs)


@nox.session
def sweep_inputs(session: nox.Session) -> None:
    """How much of transformers runs on the inputs that example_inputs makes."""
    install(session, CHECKED_TORCH)
    session.run("python", "tests/bench/inputs_sweep.py", *session.posargs)


@nox.session
def bench(session: nox.Session) -> None:
    """Ratios against the meta device, FakeTensorMode and eager, from one run."""
    install(session, CHECKED_TORCH)
    session.run("python", "tests/bench/run.py", *session.posargs)
