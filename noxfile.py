"""Every check of the project, one session each: ``nox -l`` lists them."""

import os
import shutil
import sys
from pathlib import Path

import nox

nox.options.sessions = ["tests", "lint", "types"]
nox.options.reuse_existing_virtualenvs = True

CHECKED_TORCH = "torch==2.13.0"
OLDEST_TORCH = "torch==2.12.*"

MATRIX = {
    "oldest": (OLDEST_TORCH, ()),
    "cpu": ("torch==2.13.0+cpu", ()),
    "cuda": ("torch===2.13.0", ()),
    "transformers-oldest": ("torch==2.13.*", ("transformers==5.20.2",)),
    "before-newest": ("torch==2.14.*", ()),
    "newest": ("torch", ()),
}
"""Versions of torch, and of transformers where it is not the newest: docs/versions.md says which of
them were run, on which Python. Three equal signs leave out local builds such as ``+cpu``."""

SWEEPS = ("tests/opinfo", "tests/behaviour")
"""Torch's databases of operators and modules, and other people's models."""

CACHED = ("tests/_cache", "tests/_core/test_devices.py", "tests/_operators", "tests/_patches",
          "tests/_tensor", "tests/_eager_checks", "tests/behaviour", "tests/property")  # fmt: skip
"""What runs operations of all kinds, again and again: what the cache could get wrong."""

SMOKE = ("tests/_core/test_devices.py", "tests/_patches", "tests/_operators/test_cuda.py",
         "tests/opinfo/test_cuda_operators.py", "tests/_random/test_fake_generators.py",
         "tests/_torch", "tests/test_meta_init.py")  # fmt: skip
"""What differs in a build of torch with CUDA: what is asked for devices, and private APIs."""

DEFERRED = ("tests/_materialize", "tests/_recording", "tests/_replay", "tests/_files",
            "tests/test_checkpoint.py", "tests/test_deferred.py",
            "tests/test_meta_init.py")  # fmt: skip
"""What materializes deferred modules."""

ECOSYSTEM = {
    "huggingface": "torch", "quantization": CHECKED_TORCH, "research": CHECKED_TORCH,
    "training": CHECKED_TORCH, "vision": "torch",
}  # fmt: skip
"""The folders of tests/ecosystem, each with the versions of its libraries, and the torch that they
are tried on: torchvision, which some import, is built for CUDA."""


LOOKS = (
    "@jupyterlab/rendermime", "@jupyterlab/theme-light-extension",
    "@jupyterlab/theme-dark-extension", "axe-core",
    "@codingame/monaco-vscode-api",  # VS Code's own files
    "mermaid@11",
)  # fmt: skip
"""Style sheets that surround outputs in notebooks, a checker of accessibility, and what draws the
diagrams of the site.
"""


def install(session: nox.Session, torch: str, extra: str = "test") -> None:
    """Install `torch` first, so that the package's own range is already satisfied.

    Modules are compiled when they are imported, which few of torch and transformers ever are: it
    halves the time; unless the compiled ones would not be kept.
    """
    late = () if os.environ.get("PYTHONDONTWRITEBYTECODE") else ("--no-compile",)
    session.install(*late, torch)
    session.install(*late, "-e", f".[{extra}]")


def run_pytest(session: nox.Session, *arguments: str, **environment: str) -> None:
    """Run tests on two processes, with what stands behind ``--`` on the command line.

    Each has as many threads as there are cores: those that wait for work sleep, since spinning
    takes the cores from the other process.
    """
    environment = {"OMP_WAIT_POLICY": "PASSIVE", **environment}
    command = ("pytest", "-n", "2", "--dist", "worksteal")
    session.run(*command, *arguments, *session.posargs, env=environment)


@nox.session
def tests(session: nox.Session) -> None:
    """The suite on the checked torch."""
    install(session, CHECKED_TORCH)
    run_pytest(session)


@nox.session
@nox.parametrize("cell", list(MATRIX))
def matrix(session: nox.Session, cell: str) -> None:
    """The suite on one cell of versions: ``nox -s "matrix(cell='oldest')" --force-python 3.10``.

    Without ``--force-python``, on the Python that nox has.
    """
    torch, transformers = MATRIX[cell]
    session.install(torch, *transformers)
    session.install("-e", ".[test]", *transformers)
    run_pytest(session)


@nox.session
def tests_newest(session: nox.Session) -> None:
    """The suite on the newest torch of the registry."""
    install(session, "torch")
    run_pytest(session)


@nox.session
def tests_oldest(session: nox.Session) -> None:
    """The suite on the oldest torch that pyproject.toml admits."""
    install(session, OLDEST_TORCH)
    run_pytest(session)


@nox.session
def exhaustive(session: nox.Session) -> None:
    """The suite's sweeps once more, in other ways: before a release, and every week.

    From an empty cache and from a full one; every cached outcome compared with its kernel; every
    deferred module materialized tile by tile, on threads, however small it is.
    """
    install(session, CHECKED_TORCH)
    for cache in ("cold", "warm"):
        run_pytest(session, f"--cache={cache}", *SWEEPS)
    run_pytest(session, *CACHED, *SWEEPS, TORCHFAKE_CHECK_CACHE="1")
    run_pytest(session, "--pieces", "--all-samples", *DEFERRED)
    tests = Path("tests/inspect")
    products = (tests / "memory/test_memory_product.py", tests / "serving/test_caches.py")
    run_pytest(session, *products, "--all-samples")
    counted = ("test_plan_counted.py", "test_pipelines_counted.py", "strategies/test_counted.py")
    run_pytest(session, *(f"tests/distributed/{name}" for name in counted), "--all-samples")
    run_pytest(session, "tests/_sharding/test_weights.py", "--all-samples")


@nox.session
def hostile(session: nox.Session) -> None:
    """Saves that fail, are interrupted and are killed at each call of the system; commands with all
    names and files that nobody trusts.
    """
    install(session, CHECKED_TORCH)
    everything = {"FAULT_STRIDE": "1", "HOSTILE_ALL": "1"}
    saves = (f"tests/_files/test_{name}.py" for name in ("disk", "lock", "directory"))
    run_pytest(session, *saves, "tests/cli/test_hostile_input.py", **everything)


@nox.session
def checked(session: nox.Session) -> None:
    """What depends on cached outcomes, with every one of them compared with its kernel."""
    install(session, CHECKED_TORCH)
    run_pytest(session, *CACHED, TORCHFAKE_CHECK_CACHE="1")


@nox.session
def smoke_newest(session: nox.Session) -> None:
    """A part of the suite on the newest torch of the registry, a build with CUDA that mostly runs
    where there is no GPU; every cached outcome is compared with its kernel.
    """
    install(session, "torch")
    run_pytest(session, *SMOKE, TORCHFAKE_CHECK_CACHE="1")


@nox.session
def allocator(session: nox.Session) -> None:
    """The model of CUDA's caching allocator against torch's own, on a build with CUDA and a C
    compiler; no GPU is needed.
    """
    install(session, "torch")
    session.run("python", "-m", "tests.inspect.allocator.worker_torch_allocator", *session.posargs)


@nox.session
def cuda_stand_in(session: nox.Session) -> None:
    """Steps, operators forward and backward, the kernels of attention, which dtypes are refused,
    and which devices tensors and lists of tensors may be on, against torch's own CUDA backend, on a
    build with CUDA and a C compiler; no GPU is needed, since kernels do nothing.
    """
    install(session, "torch", "transformers", "expecttest", "numpy")
    session.run("python", "-m", "tests.inspect.memory.worker_cuda_steps", *session.posargs)
    session.run("python", "-m", "tests.inspect.memory.worker_cuda_lengths")
    session.run("python", "-m", "tests.opinfo.cuda_backward")
    session.run("python", "-m", "tests._tensor.worker_cuda_attention")
    session.run("python", "-m", "tests._tensor.worker_refused_devices")
    session.run("python", "-m", "tests._eager_checks.worker_cuda_dtypes")
    session.run("python", "-m", "tests._operators.worker_list_devices")
    session.run("python", "-m", "tests._operators.worker_number_devices")


@nox.session
def interrupts(session: nox.Session) -> None:
    """Programs interrupted at every bytecode of ours, and by 2,000 real signals."""
    install(session, CHECKED_TORCH)
    session.run("python", "-m", "tests.interrupts.sweep", *session.posargs)
    session.run("python", "-m", "tests.interrupts.worker_signals", "2000", "1")


@nox.session(name="property")
def property_(session: nox.Session) -> None:
    """The generated programs, many more of them."""
    install(session, CHECKED_TORCH)
    programs = ("tests/property", "tests/_replay/test_init_programs.py")
    session.run("pytest", *programs, "-n", "2", "--hypothesis-profile=long", *session.posargs)


@nox.session
def recorded(session: nox.Session) -> None:
    """Torch's operator database recorded and made real: all samples, six dtypes, bits compared.

    Then known values of fakes, and what is refused; then forward-mode AD and ``torch.func``, on
    deferred tensors and on fakes.
    """
    install(session, CHECKED_TORCH)
    run_pytest(session, "tests/opinfo/test_recorded.py", "--all-samples")
    run_pytest(session, "tests/opinfo/test_known_values.py", "--all-samples")
    run_pytest(session, "tests/opinfo/test_refused.py", "--all-samples")
    run_pytest(session, "tests/opinfo/test_transforms.py", "--all-samples")


@nox.session
def layouts(session: nox.Session) -> None:
    """Torch's operator database with arguments in six other layouts: all samples, all strides.

    Then with written memory that repeats or is shared, in six ways; then with one tensor of another
    size; then version counters.
    """
    install(session, CHECKED_TORCH)
    run_pytest(session, "tests/opinfo/test_layouts.py", "--all-samples")
    run_pytest(session, "tests/opinfo/test_overlaps.py", "--all-samples")
    run_pytest(session, "tests/opinfo/test_wrong_sizes.py", "--all-samples")
    run_pytest(session, "tests/opinfo/test_version_counters.py", "--all-samples")


@nox.session
def strides(session: nox.Session) -> None:
    """Torch's operators and modules in 110 arrangements, forward and backward, strides as they are:
    half an hour with one sample in each, which ``-- --limit 5`` makes five. Then ``out=`` of other
    sizes, strides and dtypes, in one arrangement in 11, on fakes and materialized.
    """
    install(session, CHECKED_TORCH)
    arguments = session.posargs or ("--limit", "1")
    session.run("python", "-m", "tests.strides.sweep", *arguments)
    session.run("python", "-m", "tests.strides.sweep", "--outputs", "--step", "11", *arguments)


@nox.session
def cuda_operators(session: nox.Session) -> None:
    """Torch's operators and modules on fake CUDA: the operators, results and saved tensors that
    torch's own fakes show, and the dtypes that CUDA's own code refuses. The newest torch of the
    registry is a build with CUDA.
    """
    install(session, "torch")
    run_pytest(session, "tests/opinfo/test_cuda_operators.py", "--all-samples")
    session.run("python", "-m", "tests._eager_checks.worker_cuda_dtypes")


@nox.session
def flops(session: nox.Session) -> None:
    """FLOPs of torch's operators and modules on fake CUDA, forward and backward: those of products
    against the number of their multiplications, all against torch's own counter; and which
    operators have no formula. ``-- 10`` takes every tenth.
    """
    install(session, CHECKED_TORCH)
    session.run("python", "-m", "tests.opinfo.flops", *session.posargs)


@nox.session
def draws(session: nox.Session) -> None:
    """Every random operator and initializer, dtype and shape, with good and bad arguments; programs
    that draw, seed, save and restore, in fake and in deferred modes.
    """
    install(session, CHECKED_TORCH)
    session.run("python", "-m", "tests._recording.draw_oracle", *session.posargs)
    session.run("python", "-m", "tests._random.draw_programs", "2000")


@nox.session
def lint(session: nox.Session) -> None:
    """Style, formatting, and which package may import which."""
    session.install("ruff", "import-linter")
    session.run("ruff", "check", ".")
    session.run("ruff", "format", "--check", ".")
    session.run("lint-imports", env={"PYTHONPATH": "src"})


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
def site(session: nox.Session) -> None:
    """The documentation as a site, in build/site: no warning, no broken link or anchor; then all
    pages in headless Chromium, which CHROMIUM names or PATH has: axe finds nothing serious, and
    eight of them are right at three widths. ``-- --external`` also requests the pages of other
    sites that are linked to.
    """
    install(session, CHECKED_TORCH, "docs")
    session.run("npm", "install", "--prefix", "build/looks", *LOOKS, external=True)
    session.run("python", "-m", "docs.site.build", "build/site", *session.posargs)
    session.run("python", "-m", "docs.site.browse", "build/site", "--shots", "build/shots")


@nox.session
def looks(session: nox.Session) -> None:
    """What people see, in headless Chromium: nothing overflows, is cut or hard to read. Outputs of
    notebooks stand in the style sheets of JupyterLab and VS Code, which npm has.
    """
    install(session, CHECKED_TORCH, "docs")
    session.run("npm", "install", "--prefix", "build/looks", *LOOKS, external=True)
    session.run("pytest", "tests/looks", *session.posargs)


@nox.session
def examples(session: nox.Session) -> None:
    """Every example, run to its asserts."""
    install(session, CHECKED_TORCH)
    session.run("pytest", "tests/examples", *session.posargs)


@nox.session
def notebooks(session: nox.Session) -> None:
    """Run the notebooks of examples/ and store what they show; draw the picture of README.md.

    Names of notebooks behind ``--`` are the only ones that are run.
    """
    install(session, CHECKED_TORCH)
    session.run("python", "-m", "tests.examples.write_notebooks", *session.posargs)
    session.run("python", "-m", "tests.docs.picture")


@nox.session
def frameworks(session: nox.Session) -> None:
    """Deferred modules in other people's frameworks, on two gloo processes: a table of results."""
    install(session, CHECKED_TORCH)
    session.install("deepspeed", "lightning", "torchtitan", "triton")
    session.run("python", "-m", "tests.frameworks.run", *session.posargs)


@nox.session
@nox.parametrize("kind", list(ECOSYSTEM))
def ecosystem(session: nox.Session, kind: str) -> None:
    """Other people's libraries on fakes and deferred modules, in an environment for each kind."""
    folder = f"tests/ecosystem/{kind}"
    install(session, ECOSYSTEM[kind])
    session.install("-r", f"{folder}/requirements.txt")
    apart = f"{folder}/without_dependencies.txt"
    if Path(apart).exists():  # which contradict those of the others
        session.install("--no-deps", "-r", apart)
    run_pytest(session, folder, "-W", "ignore", ECOSYSTEM="1")  # what others warn of is theirs


@nox.session
def leftovers(session: nox.Session) -> None:
    """Programs of torch and of libraries in modes: afterwards no fake is alive, in no cache, no
    module, no script; and outside they give real tensors.
    """
    install(session, CHECKED_TORCH)
    session.install("-r", "tests/ecosystem/research/requirements.txt")
    session.run("python", "-m", "tests.leftovers.worker_leftovers", *session.posargs)


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
def sweep_graphs(session: nox.Session) -> None:
    """The dataflow of every model of transformers that runs on the inputs of example_inputs."""
    install(session, CHECKED_TORCH)
    session.run("python", "tests/bench/graph_sweep.py", *session.posargs)


@nox.session
def published(session: nox.Session) -> None:
    """Estimates against figures that others published: the tables of docs/memory.md, docs/time.md
    and docs/serving.md.
    """
    install(session, CHECKED_TORCH)
    session.run("python", "-m", "tests.published.serving")
    session.install("-r", "tests/ecosystem/training/requirements.txt", "bitsandbytes==0.50.2")
    session.install("--no-deps", "-r", "tests/ecosystem/training/without_dependencies.txt")
    session.run("python", "-m", "tests.published.run", *session.posargs)


@nox.session
def published_steps(session: nox.Session) -> None:
    """Times of steps against the tables of timm and PEFT: the second table of docs/time.md."""
    install(session, "torch")
    session.install("peft", "-r", "tests/ecosystem/vision/requirements.txt")
    session.run("python", "-m", "tests.published.adapters")
    session.run("python", "-m", "tests.published.small_batches")
    session.run("python", "-m", "tests.published.steps")
    session.run("python", "-m", "tests.published.vision", *session.posargs)


@nox.session
def release(session: nox.Session) -> None:
    """Build wheel and sdist, check what is in them, and try each in an empty environment: the first
    command of README.md, and a small program of each part.
    """
    session.install("build", "twine", "cffconvert")
    session.run("cffconvert", "--validate")
    folder = Path(session.create_tmp()).resolve() / "dist"
    shutil.rmtree(folder, ignore_errors=True)
    session.run("python", "-m", "build", "--outdir", str(folder))
    built = sorted(map(str, folder.iterdir()))
    session.run("twine", "check", "--strict", *built)
    session.run("python", "tests/release/check_files.py", *built)
    for file in built:
        environment = folder.parent / "empty"
        shutil.rmtree(environment, ignore_errors=True)
        session.run("python", "-m", "venv", str(environment))
        python = str(environment / ("Scripts" if sys.platform == "win32" else "bin") / "python")
        session.run(
            python, "-m", "pip", "install", "-q", CHECKED_TORCH, f"{file}[hf]", external=True
        )
        smoke = str(Path("tests/release/smoke.py").resolve())
        with session.chdir(folder.parent):  # where there is no src
            session.run(python, "-I", smoke, external=True)


@nox.session
def bench(session: nox.Session) -> None:
    """Ratios against the meta device, FakeTensorMode and eager, from one run."""
    install(session, CHECKED_TORCH)
    session.run("python", "tests/bench/run.py", *session.posargs)
