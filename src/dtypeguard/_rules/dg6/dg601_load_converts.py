"""DG601 load-converts."""

from ..._watch.rule import Rule, Severity

RULE = Rule(
    "DG601",
    "load-converts",
    Severity.INFO,
    summary="",
    says=("`load_state_dict` converts {share} of {module} from {was} in the checkpoint to {dtype}: {names}{effect}"),
    fix="load into a model of the file's dtype: {advice}",
    why=(
        "Loading copies into the tensors that the model has, and casts without a word: a bfloat16 "
        "checkpoint takes twice its memory in a float32 model, a float32 one loses its digits in a "
        "bfloat16 model."
    ),
    sources=(
        "https://github.com/huggingface/transformers/issues/24976",
        "https://docs.pytorch.org/docs/stable/generated/torch.nn.Module.html#torch.nn.Module.load_state_dict",
    ),
)
