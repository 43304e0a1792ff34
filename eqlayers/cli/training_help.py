"""The first page of `eqlayers fit|validate|test|predict --help`, which needs no import of torch: groups of options."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

COMMANDS = ("fit", "validate", "test", "predict")
_WIDTHS = (30, 46)  # of an option and its value, at least and at most
_PAGE = 100


class Group(NamedTuple):
    """Options of one page: a heading, commands and tasks that have them, and words by option."""

    heading: str
    commands: tuple[str, ...]
    tasks: tuple[str, ...]
    options: Mapping[str, tuple[str, str]]


_BOTH = {"potential", "property"}
#: A heading in brackets with the commands and tasks of its options; an option, its value, and words about it.
_TABLE = """\
[the run] fit validate test predict / potential property
config FILE                                  configuration, also -c; later ones count more
name NAME                                    of the run: its folder below --runs
seed_everything N                            seed of the weights
threads N                                    CPU threads of torch; 0 for torch's choice
ckpt_path FILE                               weights in place of the run's best.ckpt
[begin and go on] fit / potential property
resume                                       go on from the last checkpoint, or begin
verbose                                      print the table of all layers
test_after_fit true|false                    test the best weights after the fit
[] fit / potential
start_from FILE                              fine-tune: a potential whose weights a fit begins with
committee N                                  potentials to train, of different seeds
[data] fit validate test predict / potential
data.path FILE                               structures, in any format of ASE
data.test_path FILE                          structures for the test, or a list of files
data.split NAME                              random, time, config_type or rows
data.val N|X                                 structures for validation, or their fraction
data.test N|X                                structures for the test, or their fraction
data.keys {LABEL: NAME}                      names of labels in the file
data.units {LABEL: UNIT}                     units of labels in the file
data.e0s NAME|{H: X}                         energies of atoms: fit, isolated, none
data.cutoff X                                distance of neighbours, Angstrom
data.batch_size N                            most structures in a batch
data.max_edges N                             most edges in a batch
[data] fit validate test predict / property
data.dataset NAME                            mini, which is embedded, or qm9
data.target NAME                             property that is learned
data.root FOLDER                             of the data of qm9
data.split NAME                              random, size, standard or cormorant
data.cutoff X                                distance of neighbours, Angstrom
data.batch_size N                            molecules in a batch
data.limit_train N                           molecules to train on; all without
[loss and learning rate] fit / potential property
model.learning_rate X                        highest rate of AdamW
model.warmup_steps N                         steps of linear rise, then a half cosine
model.loss NAME                              l1, huber or mse
[] fit / potential
model.energy_weight X                        weight of energies in the loss
model.forces_weight X                        weight of forces
model.stress_weight X                        weight of stress
model.second_stage X                         fraction after which energies weigh more
[trainer] fit validate test predict / potential property
trainer.accelerator NAME                     cpu, gpu, mps or auto
trainer.devices N                            how many devices, or which
[] fit / potential property
trainer.max_epochs N                         passes over the training part
trainer.max_time D:H:M:S                     longest time
trainer.gradient_clip_val X                  largest norm of the gradient
trainer.check_val_every_n_epoch N            epochs from validation to validation
ema.decay X                                  of averaged weights; 0 for none
early_stopping.patience N                    validations without a better one
checkpoint.monitor NAME                      value that is lowest in best.ckpt
"""


def _groups() -> Iterator[Group]:
    for part in _TABLE.removeprefix("[").split("\n["):
        first, *rest = part.splitlines()
        heading, _, of = first.partition("] ")
        commands, tasks = (tuple(words.split()) for words in of.split(" / "))
        options = {}
        for line in rest:
            name, _, value = line[:44].strip().partition(" ")
            options[name] = (value, line[45:])
        yield Group(heading, commands, tasks, options)


GROUPS = tuple(_groups())

_FIRST = {
    "fit": """\
usage: eqlayers fit CONFIGURATION|STRUCTURES [--key value]...

Train a network, then test the best weights. Results are in runs/NAME.

  eqlayers fit my.xyz                    a potential, with settings that follow from the structures
  eqlayers new my.xyz                    write these settings with comments, as my.yaml
  eqlayers fit my.yaml                   train by a configuration; configs/ has examples
  eqlayers fit my.yaml --name faster --model.learning_rate 2e-3     (every key is also an option)
  eqlayers fit my.yaml --resume          go on where a run was stopped""",
    "validate": """\
usage: eqlayers validate CONFIGURATION|STRUCTURES [--key value]...

Compute errors of the best weights of a run on its validation part.

  eqlayers validate my.yaml              the run of this configuration
  eqlayers validate my.xyz               the run of `eqlayers fit my.xyz`""",
    "test": """\
usage: eqlayers test CONFIGURATION|STRUCTURES [--key value]...

Compute errors of the best weights of a run on its test part: table, metrics.json and pictures.

  eqlayers test my.yaml                  the run of this configuration
  eqlayers test my.xyz                   the run of `eqlayers fit my.xyz`
  eqlayers test my.yaml --ckpt_path FILE            other weights""",
    "predict": """\
usage: eqlayers predict CONFIGURATION [--key value]...
       eqlayers predict STRUCTURES -m MODEL -o FILE

Write predictions of the test part, or energies and forces of structures by a potential.

  eqlayers predict my.yaml               predictions.csv in the folder of the run
  eqlayers predict more.xyz -m runs/my/potential.pt -o predicted.xyz
  eqlayers predict -m FILE --help        options of the second way""",
}
_REST = """\
options of a task:
  eqlayers {command} my.yaml --help             the task and the network of a configuration
  eqlayers {command} --task potential --help    energies, forces and stress of structures
  eqlayers {command} --task property --help     properties of molecules
  eqlayers {command} --task potential --help-all   every option"""


def asks_for_general_help(args: Sequence[str]) -> bool:
    """Whether a command asks for its help and names neither a configuration nor a task."""
    return len(args) == 2 and args[0] in COMMANDS and args[1] in ("-h", "--help")


def general_help(command: str) -> str:
    """The help of a command of no particular task."""
    lines = [_FIRST[command], ""]
    for group in GROUPS:
        if command in group.commands and set(group.tasks) >= _BOTH:
            lines += option_lines(group.heading, group.options)
    return "\n".join([*lines, "", _REST.format(command=command)]) + "\n"


def option_lines(
    heading: str, options: Mapping[str, tuple[str, str]], defaults: Mapping[str, str] | None = None
) -> list[str]:
    """A heading and a line for each option, with its default."""
    starts = {name: f"--{name} {value}".rstrip() for name, (value, _) in options.items()}
    width = min(_WIDTHS[1], max([_WIDTHS[0], *map(len, starts.values())]))
    lines = [f"{heading}:"] if heading else []
    for name, (_, about) in options.items():
        default = (defaults or {}).get(name, "")
        end = f" ({default})" if default else ""
        room = _PAGE - width - 4 - len(end)
        lines.append(f"  {starts[name]:<{width}}  {about if len(about) <= room else about[: room - 3] + '...'}{end}")
    return lines
