"""The longer text behind each diagnostic code: `spmdc explain CODE`.

Codes are stable: E0xx the text, E1xx names, E2xx types, E3xx meshes and shardings, E4xx structure, E5xx running,
E6xx the command line, W the warnings.
"""

from __future__ import annotations

EXPLANATIONS: dict[str, str] = {}


def explain(code: str, text: str) -> None:
    """Adds a code. Each code is added once."""
    assert code not in EXPLANATIONS, code
    EXPLANATIONS[code] = text.strip()


explain("E001", "The text does not follow the grammar of .spmd programs. docs/language.md describes it.")
explain("E002", "The file is not text: it holds bytes that are not UTF-8, or characters that no program contains.")
explain(
    "E003", "Expressions, types or blocks nest deeper than any program needs. Name the inner parts and use the names."
)
explain("E004", "The file is larger, or has more names, numbers and signs, than spmdc reads.")
explain("E005", "The file cannot be read or written: it is missing, a folder, or not permitted, or the disk is full.")

explain("E101", "A name is used that is not defined before its use: a value, a const, a function or a parameter.")
explain(
    "E102",
    "A name is defined twice in the same scope. Values are never reassigned: give the new value a name of its own.",
)
explain("E103", "No op, function or composition has this name.")
explain(
    "E104",
    "A const given on the command line (-D NAME=NUMBER) is not declared in the program, or a float is given for one "
    "that is none.",
)

explain("E201", "An op does not accept these operands or attributes.")
explain("E202", "A value's type differs from the type that was written for it.")
explain(
    "E203", "An op, function or composition is given too many or too few arguments, an unknown attribute, or lacks one."
)
explain("E204", "Integer arithmetic on consts fails: `/` must divide, and nothing divides by zero. `//` rounds down.")
explain("E205", "A dim's size is not a non-negative integer, or a tensor is too large to address.")
explain("E206", "An einsum string, or the spec of a convolution, does not fit its operands.")
explain(
    "E207",
    "A tensor is used where a compile-time integer is needed, or a compile-time integer where a tensor is needed.",
)

explain(
    "E301",
    "A sharding names an axis that the mesh does not have, or a mesh that is not declared, or one of other devices "
    "than those that the function runs on.",
)
explain("E302", "A mesh axis is used twice in one sharding. Each axis splits one dim, or is partial, once.")
explain("E303", "A sharding does not fit the tensor: another rank, or a part of an axis that does not exist.")
explain(
    "E304",
    "A mesh is malformed: an axis of size below 1, a name or a device id given twice, not all devices, or too many.",
)
explain(
    "E305",
    "A tensor is split into more parts than there are devices, or into a number of parts that no axes of the mesh "
    "give.",
)
explain(
    "E306",
    "The program needs a mesh and declares none. A function of `spmdc.jit` gets its mesh from `mesh=`, `jax.set_mesh`, "
    "NamedShardings, its arguments or its own code.",
)
explain(
    "E307", "Two shardings cut one mesh axis at places that have no common refinement, as 4 and 6 of an axis of 12."
)
explain("E308", "A partial annotation is not possible here: the reduction does not exist for the element type.")
explain(
    "E309",
    "The text of a sharding is in none of the known notations: PartitionSpec, HLO's {devices=…} and Shardy's "
    "#sdy.sharding<…>; or that of a strategy or of a reshard's steps is not as `spmdc plan` prints them.",
)

explain(
    "E401",
    "A function, or the body or condition of a loop, ends without `return`, or returns other values than it declares.",
)
explain("E402", "A function calls itself, directly or through others. A program is a finite dataflow graph.")
explain("E403", "The program has no function to start from (`main`), or defines a function twice.")
explain("E404", "A value is used before it is defined, or outside the region that defines it.")
explain(
    "E405",
    "A loop's condition or body has other types than the values it carries, the branches of a case return other types, "
    "or a function that loops is mapped over elements.",
)
explain(
    "E406",
    "An op is not allowed at this stage: collectives belong to SPMD programs and manual regions, annotations to "
    "global programs. docs/collectives.md describes each collective and what to write for those of JAX.",
)
explain(
    "E407",
    "An SPMD program returns a value that differs between devices although its sharding says that it is the same on "
    "all.",
)

explain(
    "E408",
    "A collective is in a loop that some devices of its group leave earlier than others, so that they would wait "
    "for each other forever. Reduce the loop's condition over those axes first.",
)
explain(
    "E409",
    "A parameter or result of an SPMD program's entry must declare with `of` which shard of which global tensor it "
    "is, and its own type must be that of one shard. A parameter of a manual region must do so too. Other values "
    "must not.",
)
explain(
    "E410",
    "A manual region's axes are whole axes of the default mesh, each manual once, also where regions nest; its "
    "parameters and results are placed on that mesh, with the manual axes of a dim in front of the free ones.",
)
explain(
    "E411",
    "In a manual region, collectives run along the axes that are manual there, and annotations use the other axes, "
    "which are free. The same holds in functions that are called there. docs/manual_regions.md has examples.",
)

explain(
    "E412",
    "JAX can only run a program with manual regions after it has been partitioned: the unpartitioned program runs "
    "on one device, and a manual region is written for several.",
)

explain(
    "E413",
    "A plan contradicts itself: an op's operands or results are not sharded as in its strategy, an op cannot be "
    "split as its strategy says, the steps of a reshard lead elsewhere, or a value has no closed sharding.",
)

explain(
    "E414",
    "The initial value of a weight, as in `w: f32[64, 8] = normal(0.02)`, must be a number or a distribution with "
    "its numbers, must fit the element type, and can only be given for parameters of main.",
)

explain("E501", "An input of `run` does not fit the program: a wrong name, element type or shape, or one missing.")
explain("E502", "The program needs more devices than there are.")
explain("E503", "jax was initialised with fewer devices than the program needs, before spmdc could ask for more.")
explain(
    "E504",
    "The results of a partitioned program differ from those of the unpartitioned one by more than rounding "
    "explains. Sums in another order round differently; --integers draws inputs whose sums are exact. Results that "
    "depend on a division, softmax or another function are not exact for integers either, and argmax, top_k or a "
    "comparison of nearly equal values may decide differently: without --integers such ties are rare.",
)
explain(
    "E505",
    "The program takes more memory than this machine has. All devices are simulated in one process, and the CPU "
    "devices that JAX makes of a host share its memory.",
)

explain(
    "E507",
    "`verify` found a mesh, annotations and inputs for which the partitioned program gives other results than the "
    "unpartitioned one. This is a bug in spmdc: please report it with the program that is printed.",
)
explain(
    "E508",
    "`verify` runs a program many times, on up to 64 simulated devices, and this program is too large for that. "
    "Override the program's consts with small values (-D name=int), since faults show at small sizes as well; or "
    "ask for fewer examples.",
)
explain(
    "E509",
    "`verify --rules` found a factor rule, or a declaration of where an op is linear, that does not hold when the op "
    "is computed in parts. Partitioned programs with that op can be wrong.",
)

explain(
    "E510",
    "An op calls code outside of the program (opaque) that cannot be called: the runtime of these devices has no "
    "function of that name, or the function rejects its operands. Such code only runs on the kind of device that it "
    "is registered for; the simulator and the evaluation of unpartitioned programs run it on the host's CPU.",
)

explain(
    "E512",
    "The program calls a Python function on the host by its name, as a program that was read from text does, and no "
    "function is registered under that name: use spmdc.register_callback(name, function).",
)
explain(
    "E513",
    "A Python function that the program calls on the host returned other results than the program declares: another "
    "number of them, other shapes, or element types that cannot be converted. Or a function of JAX arrays, which a "
    "rule allows to be applied to shards (jax's custom_partitioning), does not accept these shards, or returns "
    "nothing.",
)
explain(
    "E514",
    "An argument is donated, so that the devices may write results into its memory, but the same array is also "
    "passed as another argument, which they would then read.",
)

explain(
    "E515",
    "XLA was asked to partition the same program for a comparison, and it does not compile it, crashes, or takes "
    "longer than ten minutes; the message has its reason. That is a fault or a limit of XLA or of its CPU backend.",
)

explain(
    "E516",
    "There is no such target to compile for. A target is a generation of TPUs and the layout of its chips, as in "
    "tpu-v3:4x4. libtpu must know it, and it must have as many devices as the mesh: two per chip up to v4, then "
    "one.",
)
explain(
    "E517",
    "Google's compiler for TPUs is in the package libtpu, which is not installed. With it, programs can be compiled "
    "for TPUs on machines that have none: pip install 'spmdc[tpu]'.",
)
explain(
    "E518",
    "The compiler of the target does not compile the partitioned program; the message has its reason. Most often a "
    "device has less memory than the program needs.",
)

explain(
    "E519",
    "A run cannot go on from a checkpoint: the file is damaged or not a checkpoint, or it is of a run of another "
    "program, or with other weights, data, seed or optimizer. The mesh, annotations and the number of steps may "
    "differ.",
)
explain(
    "E520",
    "The loss of a run, or its gradient, is not finite any more. The program was evaluated op by op with the "
    "weights and the data of that step, and the place is the first op that gives such a number for finite operands.",
)
explain(
    "E521",
    "A run of several processes cannot begin or go on: the mesh has another number of devices than the processes "
    "have together, there is no cluster to join, or one of the processes has ended. The last checkpoint has the "
    "progress up to it.",
)
explain(
    "E522",
    "An op is declared (ir.ops.declaration.declare) without a function that is needed: a kernel, which computes it in "
    "the simulator, or an emitter, which writes it for JAX, StableHLO and HLO. docs/extending.md has an example.",
)

explain(
    "E601",
    "The command line is not one that spmdc understands, or a Python function is called with an argument of another "
    "kind than it takes.",
)
explain(
    "E602",
    "The file of a machine is invalid: it is not TOML, a field is missing or unknown, or a figure makes no sense. "
    "docs/machines.md describes all fields.",
)
explain("E603", "No machine has this name, or its network has no such shape. `spmdc machine list` shows all machines.")
explain(
    "E604",
    "The mesh does not fit the network of the machine: each mesh axis must consist of parts of the network's dims, "
    "whose sizes divide the sizes of these dims.",
)
explain("E605", "The command needs a package that is not installed. The message says which extra of spmdc installs it.")

explain(
    "E606",
    "The configuration of a training is invalid: it is not TOML; a field is missing, unknown or contradicts "
    "another; or its program or its data cannot be used for training. docs/training.md describes all fields.",
)

explain("W001", "An op cannot be computed on its operands as they are split, so they are gathered first.")
explain(
    "W002",
    "The operands and results of an op, and the values that they are resharded from, take more of a device's memory "
    "than the limit (--memory-limit) in every strategy that was tried. The one that takes the least was chosen.",
)

explain(
    "W003",
    "The values that are alive on a device at one time take more memory than the machine has (--machine): "
    "arguments, results, and values that compiled kernels store in between, by an estimate. The message lists the "
    "largest; docs/machines.md describes the estimate.",
)

explain(
    "W004",
    "To keep within a device's memory limit (--memory-limit, or memory_limit of a training), a gradient computes "
    "the named blocks of the program again instead of keeping their values. `checkpoint { … }` in the program "
    "chooses such blocks by hand.",
)

explain(
    "E701",
    "The text is not MLIR, or not HLO, that jaxlib's own parser accepts; the message has its reason. For some "
    "texts, such as those that are nested too deep, these parsers end their process, and for others they never "
    "return. So they run in a process of their own. If it ends, the message has its last output, at the line that "
    "caused it.",
)
explain(
    "E702",
    "The module has an op that spmdc cannot import. spmdc imports the ops of StableHLO, CHLO and HLO that compute "
    "with tensors, and no ops of other dialects.",
)
explain("E703", "A tensor's shape is known only when the program runs. Partitioning needs static shapes.")
explain(
    "E704",
    "The module has effects that a program cannot have: it sends to or receives from another program; it exchanges "
    "data with the host in a loop, a choice or a function; it calls code with effects in an elementwise function, "
    "which runs in no defined order; or it was read from text and calls a Python function, which text cannot "
    "contain. Such calls in JAX functions are imported by spmdc.from_jax and spmdc.jit.",
)
explain(
    "E705",
    "A custom call takes functions of the module, and spmdc does not know how it uses them. Custom calls that take "
    "only tensors become the op opaque, whatever they compute.",
)
explain(
    "E706", "The module has an element type, such as i7, that spmdc does not support. Convert it to a supported one."
)
explain(
    "E708",
    "The body of a reduce, scatter or window, or the comparator of a sort, is not one that spmdc knows, and cannot "
    "be applied element by element.",
)
explain(
    "E709",
    "The module is partially partitioned by hand. It has collectives, asks for its device's number, or runs as "
    "several replicas, outside of a region that says which axes are manual; and it has annotations of a program "
    "that is yet to be partitioned. Or its groups of devices are not along axes of a mesh.",
)

explain(
    "E711",
    "A function that is imported or compiled separately uses values that are not its arguments and that a "
    "surrounding jax.grad, jax.jit or the like has not computed yet. A call of a function of spmdc.jit passes them "
    "along; the function's program needs them as arguments. Or the function uses a reference (jax.new_ref) that was "
    "made outside of it and that it could change. A call of a function of spmdc.jit can change it, but a program "
    "only has results.",
)
explain(
    "E712",
    "JAX supports an op, such as a decomposition of a matrix, for some element types only, and the function uses it "
    "with another; or JAX supports it on other kinds of devices than those of the mesh. "
    "Convert its operands to a supported type, and its result back, or use other ops.",
)
explain(
    "E710",
    "The program has no such gradient. The differentiated result must be a float, and a scalar unless it is named; "
    "the parameters must be floats. The derivatives of code outside of the program (`opaque`) and of Python "
    "functions on the host are not known, and such a Python function must not be called by each device separately.",
)
