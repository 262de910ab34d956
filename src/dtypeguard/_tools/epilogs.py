"""What `--help` of each command ends with: examples, and what its exit status means."""

EPILOGS = {
    "": """\
examples:
  python -m dtypeguard audit train.py --lr 1e-3
  python -m dtypeguard audit --ignore DG3 --html report.html -m mypackage.train
  python -m dtypeguard audit --write-baseline known.json train.py   # accept all findings
  python -m dtypeguard audit --baseline known.json train.py         # fail on new findings
  python -m dtypeguard audit --diff train.py                        # show edits, proven by running it again
  python -m dtypeguard audit --fix train.py                         # write those that are safe
  python -m dtypeguard compare mypackage.models:make_model --batch mypackage.data:make_batch --dtype bfloat16
  python -m dtypeguard rules DG309
  python -m dtypeguard dryrun mypackage.net:Net --batch mypackage.net:make_batch --require bfloat16
  python -m dtypeguard manifest mypackage.models:make_model -o dtypes.lock
  python -m dtypeguard manifest --check dtypes.lock mypackage.models:make_model model.safetensors
  python -m dtypeguard diff mypackage.old:make_model mypackage.new:make_model --batch mypackage.data:make_batch
  python -m dtypeguard describe mypackage.models:make_model --batch mypackage.data:make_batch

Options of a command may stand in pyproject.toml, in a table for each: [tool.dtypeguard.audit] fail-on = "error".
The command line counts before it; --no-NAME takes back what it says of an option.
""",
    "audit": """\
examples:
  python -m dtypeguard audit train.py --lr 1e-3
  python -m dtypeguard audit --steps 20 --html report.html -m mypackage.train

exit status: the program's own if that is not 0; else 1 if a finding fails, 2 for wrong usage. [tool.dtypeguard] in
pyproject.toml (select, ignore, severity, per-file-ignores) also chooses rules, and [tool.dtypeguard.audit] sets these
options. A comment turns a rule off for a line: # dtypeguard: ignore[DG102]
""",
    "compare": """\
examples:
  python -m dtypeguard compare mypackage.models:make_model --batch mypackage.data:make_batch --dtype bfloat16
  python -m dtypeguard compare mypackage.models:make_model --batch mypackage.data:make_batch --format nvfp4 --keep 0.01

exit status: 1 if the error is larger than --max-error, 2 for wrong usage and for what cannot be compared.
""",
    "manifest": """\
examples:
  python -m dtypeguard manifest mypackage.models:make_model -o dtypes.lock
  python -m dtypeguard manifest --check dtypes.lock mypackage.models:make_model model.safetensors checkpoint/

A checkpoint is a file of safetensors, torch.save or GGUF, an index of shards, or a folder with these or with what
torch.distributed.checkpoint wrote. Only headers are read, and no code in a file is run.

exit status: 1 if something differs, 2 for wrong usage and for files that cannot be read.
""",
    "diff": """\
examples:
  python -m dtypeguard diff package.old:make package.new:make --batch package.data:make_batch
  python -m dtypeguard diff package.old:make --batch package.data:make_batch --capture old.safetensors
  python -m dtypeguard diff package.new:make --batch package.data:make_batch --against old.safetensors

exit status: 1 if one of the two is another function, 2 for wrong usage and for what cannot be compared.
""",
    "describe": """\
examples:
  python -m dtypeguard describe mypackage.models:make_model
  python -m dtypeguard describe mypackage.models:make_model --batch mypackage.data:make_batch

exit status: 1 if a batch violates the contract, 2 for wrong usage.
""",
    "dryrun": """\
examples:
  python -m dtypeguard dryrun mypackage.models:make_model --batch mypackage.data:make_batch
  python -m dtypeguard dryrun mypackage.net:Net --dtype float32,bfloat16 --region none --require bfloat16

exit status: 1 if the model does not run in a dtype that --require names, 2 for wrong usage.
""",
    "completion": """\
examples:
  dtypeguard completion bash > ~/.local/share/bash-completion/completions/dtypeguard
  dtypeguard completion zsh > ~/.zfunc/_dtypeguard            # a folder in $fpath
  dtypeguard completion fish > ~/.config/fish/completions/dtypeguard.fish

It completes the command dtypeguard, and needs shtab: pip install 'dtypeguard[completion]'.

exit status: 2 for wrong usage, and where shtab is missing.
""",
    "rules": """\
examples:
  python -m dtypeguard rules
  python -m dtypeguard rules DG309 DG4

exit status: 2 for a rule that there is not.
""",
    "doctor": """\
exit status: 1 if something is wrong with the environment, 2 for wrong usage.
""",
}
