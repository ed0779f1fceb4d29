"""Device profiles: the CUDA devices that a mode can report.

Input: the name of a profile. Output: the figures that ``torch.cuda`` reports for that device.
Invariant: every figure has its source beside it; torch is not imported, so that the command line
can check names first.

``total_memory`` is the figure that the driver reports, which is less than the datasheet's: the
driver, and on many cards ECC, reserve some memory. The figure differs a little between drivers; if
public reports differ, the source gives the range. A figure such as 143156 MiB was printed by
``get_device_properties``; a figure such as 79.11 GiB is from torch's out-of-memory messages.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable
from typing import NamedTuple, TypeVar

from torchfake._core.gpu_names import did_you_mean_gpu
from torchfake._core.gpu_names import keys_named as keys_named
from torchfake._core.pickle_names import publish
from torchfake.errors import DeviceError, listed

CUDA, ROCM = "cuda", "rocm"


class CudaProfile(NamedTuple):
    """A GPU type, with the fields of ``torch.cuda.get_device_properties``."""

    name: str
    total_memory: int  # bytes, as the driver reports them
    major: int  # compute capability
    minor: int
    multi_processor_count: int
    source: str  # where the figures come from
    backend: str = CUDA  # or ROCM, for AMD's GPUs, whose device type in torch is cuda too


publish(CudaProfile, "torchfake._cuda")

T = TypeVar("T")


class AlikeGpus:
    """The GPU of a run, first, and others on which the run would be the same: each question that
    the run has asked of its GPU would have had an equal answer.
    """

    def __init__(self, *profiles: CudaProfile) -> None:
        self.profiles = profiles

    def answer(self, question: Callable[[CudaProfile], T]) -> T:
        """The answer of the run's GPU. GPUs whose answer is another one are alike no longer."""
        first, answers = self.profiles[0], self.answers(question)
        self.profiles = tuple(each for each in answers if answers[each] == answers[first])
        return answers[first]

    def answers(self, question: Callable[[CudaProfile], T]) -> dict[CudaProfile, T]:
        """The answer of each GPU, for what is recorded for each."""
        found = {self.profiles[0]: question(self.profiles[0])}
        for other in self.profiles[1:]:
            with contextlib.suppress(Exception):  # which the run's GPU does not raise
                found[other] = question(other)
        self.profiles = tuple(found)
        return found


def _mib(number: float) -> int:
    return int(number * 2**20)


def _gib(number: float) -> int:
    return int(number * 2**30)


_CAPABILITY = "capability: https://developer.nvidia.com/cuda-gpus"
_ROCM_TABLE = "processors: https://rocm.docs.amd.com, GPU hardware specifications"
_SMI = "(in nvidia-smi, which counts more: @modal-labs/modal-client/pull/2797)"


def _nvidia(*reports: str) -> str:
    """The source text of a profile from public reports; ``@`` abbreviates GitHub's address."""
    return "; ".join([*reports, _CAPABILITY]).replace("@", "https://github.com/")


def _amd(*reports: str) -> str:
    return "; ".join([*reports, _ROCM_TABLE]).replace("@", "https://github.com/")


PROFILES: dict[str, CudaProfile] = {
    "rtx3080-10gb": CudaProfile(
        "NVIDIA GeForce RTX 3080", _mib(10002), 8, 6, 68,
        _nvidia("10002 to 10018 MiB in public logs, 10240 on Windows",
            "9.78 GiB: @zai-org/CogVideo/issues/34"),
    ),
    "rtx2080ti-11gb": CudaProfile(
        "NVIDIA GeForce RTX 2080 Ti", _mib(11019), 7, 5, 68,
        _nvidia("11019 MiB in public logs, 10825 with recent drivers",
            "10.76 GiB: @JDAI-CV/image-captioning/issues/11"),
    ),
    "rtx4070ti-12gb": CudaProfile(
        "NVIDIA GeForce RTX 4070 Ti", _mib(12007), 8, 9, 60,
        _nvidia("12007 MiB in public logs, 12282 on Windows",
            "11.70 GiB: @Kwai-Kolors/Kolors/issues/11"),
    ),
    "t4-16gb": CudaProfile(
        "Tesla T4", _mib(14913), 7, 5, 40,
        _nvidia("14913 MiB in public logs, with earlier drivers 14930 to 15110",
            "15110 and 40 processors in deviceQuery: "
            "https://chiemon.github.io/2024/12/25/%E6%98%BE%E5%8D%A1%E4%BF%A1%E6%81%AF.html",
            f"15360 {_SMI}"),
    ),
    "rtx5080-16gb": CudaProfile(
        "NVIDIA GeForce RTX 5080", _mib(15840), 12, 0, 84,
        _nvidia("15840 MiB in public logs, 16302 on Windows",
            "15.48 GiB: @vllm-project/vllm/issues/14452"),
    ),
    "rtx4080-16gb": CudaProfile(
        "NVIDIA GeForce RTX 4080", _mib(16049), 8, 9, 76,
        _nvidia(
            "16049 MiB, 76 processors: @brainglobe/brainglobe.github.io/blob/6da894f/docs/source/"
            "documentation/cellfinder/troubleshooting/speed-up.md",
            "16376 on Windows, in public logs"),
    ),
    "v100-16gb": CudaProfile(
        "Tesla V100-SXM2-16GB", _mib(16160), 7, 0, 80,
        _nvidia("16130 to 16160 MiB in public logs", "15.77 GiB: @meta-llama/llama/issues/918"),
    ),
    "a10-24gb": CudaProfile(
        "NVIDIA A10", _mib(22516), 8, 6, 72,
        _nvidia("22516 to 22599 MiB in public logs",
            "21.99 GiB: @zai-org/CogVLM/issues/236",
            f"23028 {_SMI}"),
    ),
    "l4-24gb": CudaProfile(
        "NVIDIA L4", _mib(22563), 8, 9, 58,
        _nvidia("22518 to 22693 MiB in public logs",
            "22.03 GiB: @ArcInstitute/evo2/issues/190",
            f"23034 {_SMI}"),
    ),
    "a10g-24gb": CudaProfile(
        "NVIDIA A10G", _mib(22587), 8, 6, 80,
        _nvidia("22587 MiB in public logs", "about 22 GB: @huggingface/local-gemma/pull/25"),
    ),
    "rtx4090-24gb": CudaProfile(
        "NVIDIA GeForce RTX 4090", _mib(24081), 8, 9, 128,
        _nvidia("24081 MiB in public logs, 24563 on Windows",
            "23.52 GiB: @sgl-project/sglang/issues/12496",
            "23.64: @deepseek-ai/DeepSeek-V3/issues/205"),
    ),
    "rtx3090-24gb": CudaProfile(
        "NVIDIA GeForce RTX 3090", _mib(24124), 8, 6, 82,
        _nvidia("24124 to 24259 MiB in public logs",
            "23.56 GiB: @noonghunna/club-3090/issues/58",
            "23.68: @vllm-project/vllm/issues/16343"),
    ),
    "rtx5090-32gb": CudaProfile(
        "NVIDIA GeForce RTX 5090", 33_680_457_728, 12, 0, 170,
        _nvidia("bytes in deviceQuery: @NVIDIA/nccl/issues/1637",
            "33677180928: @aikitoria/open-gpu-kernel-modules/issues/1"),
    ),
    "v100-32gb": CudaProfile(
        "Tesla V100-SXM2-32GB", _mib(32494), 7, 0, 80,
        _nvidia("32494 to 32510 MiB in public logs",
            "31.74 GiB: @liucongg/ChatGLM-Finetuning/issues/73"),
    ),
    "a100-40gb": CudaProfile(
        "NVIDIA A100-SXM4-40GB", 42_298_834_944, 8, 0, 108,
        _nvidia("bytes in deviceQuery: @bottlerocket-os/bottlerocket/pull/3873",
            "40339 to 40654 MiB in public logs",
            f"40960 {_SMI}"),
    ),
    "l40s-48gb": CudaProfile(
        "NVIDIA L40S", _gib(44.39), 8, 9, 142,
        _nvidia("44.39 to 44.52 GiB in public logs",
            "44.42: @stepfun-ai/Step-Video-T2V/issues/8",
            f"46068 MiB {_SMI}"),
    ),
    "l40-48gb": CudaProfile(
        "NVIDIA L40", _gib(44.40), 8, 9, 142,
        _nvidia("44.40 GiB: @QwenLM/Qwen3-VL/issues/2097"),
    ),
    "rtx6000ada-48gb": CudaProfile(
        "NVIDIA RTX 6000 Ada Generation", _mib(48520), 8, 9, 142,
        _nvidia("48520 to 48622 MiB in public logs",
            "44.43 GiB with ECC on: @DINGYANB/MTVCrafter/issues/21"),
    ),
    "a6000-48gb": CudaProfile(
        "NVIDIA RTX A6000", _mib(48676), 8, 6, 84,
        _nvidia(
            "48676 MiB and 84 processors, with ECC off: @pytorch/ao/blob/36027d8/torchao/prototype/"
            "hqq/README.md"),
    ),
    "mi250x-64gb": CudaProfile(
        "AMD Instinct MI250X", _mib(65520), 9, 0, 110,
        _amd("65520 MiB in public logs, of one of a card's two devices",
            "67092480 KB, of a device of 64 GB: @ROCm/legacy-rocm-build/issues/2595"), ROCM,
    ),
    "h100pcie-80gb": CudaProfile(
        "NVIDIA H100 PCIe", _mib(81008), 9, 0, 114,
        _nvidia("81008 MiB in public logs, of which no address is at hand"),
    ),
    "h100-80gb": CudaProfile(
        "NVIDIA H100 80GB HBM3", _gib(79.11), 9, 0, 132,
        _nvidia("79.11 GiB: @vllm-project/vllm/issues/27508",
            "81089 to 81090 MiB in public logs",
            f"81559 {_SMI}"),
    ),
    "a100-80gb": CudaProfile(
        "NVIDIA A100-SXM4-80GB", _mib(81050), 8, 0, 108,
        _nvidia("81050 MiB: @meta-pytorch/torchrec/pull/3580",
            "81049, of the PCIe card: @ekondis/mixbench/issues/47",
            f"81920 {_SMI}"),
    ),
    "h100nvl-94gb": CudaProfile(
        "NVIDIA H100 NVL", _mib(95320), 9, 0, 132,
        _nvidia("95320 MiB, 93.02 to 93.10 GiB in public logs",
            "93.00 GiB: @ali-vilab/VACE/issues/56"),
    ),
    "gh200-96gb": CudaProfile(
        "NVIDIA GH200 480GB", 102_005_473_280, 9, 0, 132,
        _nvidia("97280 MiB and 132 processors: @mredenti/PowerCapping/blob/f57c11c/configuration/"
            "OpenCL_benchmark.md",
            "the name: @vllm-project/vllm/issues/9630"),
    ),
    "h20-96gb": CudaProfile(
        "NVIDIA H20", _mib(97285), 9, 0, 78,
        _nvidia(
            "97285 MiB and 78 processors: @alipay/PainlessInferenceAcceleration/blob/78c9b00/flood/"
            "flood/ops/seg_attn.py"),
    ),
    "h200-141gb": CudaProfile(
        "NVIDIA H200", _mib(143156), 9, 0, 132,
        _nvidia(
            "143156 MiB and 132 processors: @ai-bot-pro/achatbot/blob/c2b101b/deploy/modal/src/llm/"
            "vllm/vlm/skywork_r1v.py",
            "139.81 GiB: @sungwon-chae/arxiv_confi/blob/bd1defe/etu_logging.md",
            "139.72: @vllm-project/vllm/issues/23192"),
    ),
    "b200-180gb": CudaProfile(
        "NVIDIA B200", _mib(182631), 10, 0, 148,
        _nvidia("182631 to 182642 MiB in public logs",
            "178.35 GiB: @unslothai/unsloth/issues/3411",
            "the same, and 148 processors: @pytorch/ao/pull/4002"),
    ),
    "gb200-186gb": CudaProfile(
        "NVIDIA GB200", _gib(184.31), 10, 0, 152,
        _nvidia("184.31 GiB: @NVIDIA/TensorRT-LLM/blob/49314d6/docs/source/deployment-guide/"
            "deployment-guide-for-kimi-k3-on-trtllm.md",
            "189471 MiB in nvidia-smi, in public logs"),
    ),
    "mi300x-192gb": CudaProfile(
        "AMD Instinct MI300X", _mib(196592), 9, 4, 304,
        _amd("206141652992 bytes: @ROCm/legacy-rocm-build/issues/4750",
            "191.69 GiB as a virtual function, in public logs",
            "304 processors in rocminfo: @ROCm/hip/issues/3716"), ROCM,
    ),
    "mi325x-256gb": CudaProfile(
        "AMD Instinct MI325X", _mib(262128), 9, 4, 304,
        _amd("255.98 GiB: @vllm-project/vllm/issues/41963",
            "as of MI300X, all but 16 MiB"), ROCM,
    ),
    "b300-288gb": CudaProfile(
        "NVIDIA B300 SXM6 AC", _gib(267.69), 10, 3, 148,
        _nvidia("267.69 GiB: @ademeure/QuickRunCUDA/blob/9d7b00f/b300_clean/09_memory_apis.md",
            "275040 MiB in nvidia-smi, in public logs"),
    ),
    "mi355x-288gb": CudaProfile(
        "AMD Instinct MI355X", _mib(294896), 9, 5, 256,
        _amd("287.98 GiB: @SemiAnalysisAI/InferenceX/commit/"
            "462f8ed735d9f3ab9a98a896a553c6e41cee410f",
            "as of MI300X, all but 16 MiB"), ROCM,
    ),
}  # fmt: skip
"""The known profiles, smallest memory first."""

DEFAULT_PROFILE = "a100-80gb"

ALL = "all"
"""The name that means every profile."""

_USUAL = (
    "t4-16gb", "a10-24gb", "l4-24gb", "rtx3090-24gb", "rtx4090-24gb", "rtx5090-32gb", "v100-32gb",
    "a100-40gb", "l40s-48gb", "a100-80gb", "h100-80gb", "h200-141gb", "b200-180gb", "mi300x-192gb",
    "b300-288gb",
)  # fmt: skip


def usual_profiles() -> dict[str, CudaProfile]:
    """The profiles that are tried if none is named: one for each size and generation."""
    return {key: gpu for key, gpu in PROFILES.items() if key in _USUAL}


def named_profile(name: str | CudaProfile, argument: str = "gpu") -> tuple[str, CudaProfile]:
    """The key and the profile that `name` means; a profile is returned as it is, with its name.

    Raises:
        DeviceError: if `name` means no profile, or may mean several; the message names `argument`
            and the profiles that may be meant.
    """
    if isinstance(name, CudaProfile):
        return name.name, name
    names = {key: found.name for key, found in PROFILES.items()}
    text = name if isinstance(name, str) else ""
    found = keys_named(text, names)
    if len(found) == 1:
        return found[0], PROFILES[found[0]]
    if found:
        raise DeviceError(f"{argument}={name!r} may mean {listed(found)}: give one of these names")
    hint = did_you_mean_gpu(text, names) or f"; there are: {', '.join(PROFILES)}."
    raise DeviceError(
        f"{argument}={name!r}: there is no such GPU{hint} Others are described by "
        "torchfake.read_profiles(FILE), on the command line --profiles FILE"
    )


def named_profiles(
    names: Iterable[str | CudaProfile], argument: str = "gpu"
) -> dict[str, CudaProfile]:
    """The profiles with these names, by key. A string may have several names, separated by commas;
    ``"all"`` means every profile.

    Raises:
        DeviceError: as :func:`named_profile` does.
    """
    single = [
        part.strip() if isinstance(part, str) else part
        for name in names
        for part in (name.split(",") if isinstance(name, str) else [name])
    ]
    if ALL in single:
        return profiles()
    return dict(named_profile(name, argument) for name in single)


def profile(name: str | CudaProfile, argument: str = "gpu") -> CudaProfile:
    """The profile that :func:`named_profile` finds, which refuses unknown names."""
    return named_profile(name, argument)[1]


def profiles() -> dict[str, CudaProfile]:
    """The GPU profiles that ``fake_mode(fake_cuda=NAME)`` accepts, by name, smallest first.

    >>> profiles()["h100-80gb"].major
    9
    """
    return dict(PROFILES)
