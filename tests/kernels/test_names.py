"""Kernel names: demangled, short, in the right category, asked for once."""

from __future__ import annotations

from pathlib import Path

import pytest
from sgtop_core.kernels.categories import Categories, TableError, load
from sgtop_core.kernels.names import NameTable, demangle, memory_name, short


def mangled_cutlass(inner: str) -> str:
    return f"_ZN7cutlass7Kernel2I{len(inner)}{inner}EEvNT_6ParamsE"


CASES = [
    (
        mangled_cutlass("cutlass_80_tensorop_bf16_s16816gemm_relu_bf16_128x64_64x4_tn_align8"),
        "cutlass_80_tensorop_bf16_s16816gemm_relu_bf16_128x64_64x4_tn_al…",
        "gemm",
    ),
    (
        "_ZN2at6native29vectorized_elementwise_kernelILi4ENS0_11FillFunctorIfEESt5arrayIPcLm1EEEEviT0_T1_",
        "vectorized_elementwise_kernel[FillFunctor]",
        "copy",
    ),
    ("_ZN10flashinfer4norm13RMSNormKernelILj8E13__nv_bfloat16EEvPT0_S4_S4_jjjff", "RMSNormKernel", "norm"),
    (
        "_ZN5flash24flash_fwd_splitkv_kernelI23Flash_fwd_kernel_traitsILi128ELi64ELi128ELi4EEEEvNS_16Flash_fwd_paramsE",
        "flash_fwd_splitkv_kernel",
        "attention",
    ),
    (
        "_Z40ncclDevKernel_AllReduce_Sum_bf16_RING_LL24ncclDevKernelArgsStorageILm4096EE",
        "ncclDevKernel_AllReduce_Sum_bf16_RING_LL",
        "communication",
    ),
    ("fused_moe_kernel", "fused_moe_kernel", "moe"),
    ("nvjet_tst_64x8_64x16_4x1_v_bz_TNN", "nvjet_tst_64x8_64x16_4x1_v_bz_TNN", "gemm"),
    ("void flash::FlashAttnFwdSm90<int>::operator()(int)", "FlashAttnFwdSm90", "attention"),
    (
        "void cutlass::device_kernel<flash::enable_sm90_or_later<flash::FlashAttnFwdSm90<int, 3> > >(int)",
        "FlashAttnFwdSm90",
        "attention",
    ),
    (
        "void cutlass::device_kernel<cutlass::gemm::kernel::GemmUniversal<cute::tuple<int, int>, int> >(int)",
        "GemmUniversal",
        "gemm",
    ),
    ("void flashinfer::BatchDecodeWithPagedKVCacheKernel<(flashinfer::PosEncodingMode)0>(int)",
     "BatchDecodeWithPagedKVCacheKernel", "attention"),
    ("void per_token_group_quant_8bit_kernel<__nv_bfloat16, __nv_fp8_e4m3>(void*)", "per_token_group_quant_8bit_kernel",
     "quantisation"),
    ("void flashinfer::sampling::TopKTopPSamplingFromProbKernel<1024u>(float*)", "TopKTopPSamplingFromProbKernel",
     "sampling"),
    ("void flashinfer::activation::act_and_mul_kernel<__nv_bfloat16, &(silu(float const&))>(int)", "act_and_mul_kernel",
     "activation"),
    ("store_kvcache", "store_kvcache", "kv cache"),
    ("triton_poi_fused_add_mul_0", "triton_poi_fused_add_mul_0", "elementwise"),
    ("void at::native::(anonymous namespace)::CatArrayBatchedCopy<int>(int)", "CatArrayBatchedCopy", "copy"),
    ("something_never_heard_of", "something_never_heard_of", "other"),
]  # fmt: skip


@pytest.mark.parametrize(("raw", "want", "category"), CASES)
def test_known_kernels(raw: str, want: str, category: str) -> None:
    full = demangle(raw)
    assert not full.startswith("_Z")
    assert short(full) == want
    assert Categories().of(full) == category


@pytest.mark.parametrize(
    "name", ["", "_Z", "_Znonsense", "_ZN", "<<<>>>", "void ", "a<b(c", "x" * 10_000, "∆::<kernel>"]
)
def test_odd_names_do_no_harm(name: str) -> None:
    full = demangle(name)
    assert len(short(full)) <= 64
    Categories().of(full)


def test_memory_operations() -> None:
    assert memory_name(-((1 << 8) | 1)) == "memcpy HtoD"
    assert memory_name(-((1 << 8) | 8)) == "memcpy DtoD"
    assert memory_name(-((1 << 8) | 99)) == "memcpy unknown"
    assert memory_name(-(2 << 8)) == "memset"


def test_users_table_comes_first(tmp_path: Path) -> None:
    file = tmp_path / "kernels.toml"
    file.write_text('[[category]]\nname = "ours"\npatterns = ["secret_.*_v7", "nccl"]\n')
    categories = Categories(load(file))
    assert categories.of("secret_attention_v7") == "ours"
    assert categories.of("ncclDevKernel_AllReduce") == "ours"
    assert categories.of("fused_moe_kernel") == "moe"


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("[[category]\n", "kernels.toml"),
        ('[[category]]\nname = "x"\n', "category 1 needs a name and a list of patterns"),
        ('[[category]]\nname = "x"\npatterns = ["("]\n', "not a regular expression"),
        ('category = "x"\n', "list of tables"),
    ],
)
def test_a_bad_table_is_explained(tmp_path: Path, text: str, says: str) -> None:
    file = tmp_path / "kernels.toml"
    file.write_text(text)
    with pytest.raises(TableError, match=r".") as e:
        load(file)
    assert says in str(e.value)


def test_missing_table(tmp_path: Path) -> None:
    with pytest.raises(TableError, match="No such file"):
        load(tmp_path / "none.toml")


def test_addresses_are_asked_for_once() -> None:
    table = NameTable()
    table.see([0x10, 0x20, 0x10, -((1 << 8) | 2)])
    assert table.ask() == [0x10, 0x20]
    table.see([0x10, 0x20])
    assert table.ask() == []
    assert table.get(0x10).short == "kernel at 0x10"
    table.answer({"10": "fused_moe_kernel", "20": None, "zz": "x"})
    assert (table.get(0x10).short, table.get(0x10).category) == ("fused_moe_kernel", "moe")
    assert table.get(0x20).short == "kernel at 0x20"
    assert table.get(-((1 << 8) | 2)).short == "memcpy DtoH"
    table.ask_again([0x20])
    assert table.ask() == [0x20]


def test_many_names_go_out_in_parts() -> None:
    table = NameTable()
    table.see(range(1, 1001))
    seen: list[int] = []
    while part := table.ask():
        assert len(part) <= 256
        seen += part
    assert seen == list(range(1, 1001))
