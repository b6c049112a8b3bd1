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
explain(
    "E005",
    "The file cannot be read or written: it is missing, a folder, or not permitted, or the disk is full.",
)

explain("E101", "A name is used that is not defined before its use: a value, a const, a function or a parameter.")
explain(
    "E102",
    "A name is defined twice in the same scope. Values are never reassigned: give the new value a name of its own.",
)
explain("E103", "No op, function or composition has this name.")
explain("E104", "A const given on the command line (-D name=int) is not declared in the program, or is not an integer.")

explain("E201", "An op does not accept these operands or attributes.")
explain("E202", "A value's type differs from the type that was written for it.")
explain(
    "E203", "An op, function or composition is given too many or too few arguments, an unknown attribute, or lacks one."
)
explain("E204", "Integer arithmetic on consts fails: `/` must divide, and nothing divides by zero. `//` rounds down.")
explain("E205", "A dim's size is not a non-negative integer, or a tensor is too large to address.")
explain("E206", "An einsum string, or the spec of a convolution, does not fit its operands.")
explain("E207", "A tensor is used where a compile-time integer is needed, or the other way round.")

explain("E301", "A sharding names an axis that the mesh does not have, or a mesh that is not declared.")
explain("E302", "A mesh axis is used twice in one sharding. Each axis splits one dim, or is partial, once.")
explain("E303", "A sharding does not fit the tensor: another rank, or a part of an axis that does not exist.")
explain(
    "E304",
    "A mesh is malformed: an axis of size below 1, a name or a device id given twice, not all devices, or too many.",
)
explain(
    "E305",
    "A tensor is split into more partitions than there are devices, or into a number that no axes of the mesh make.",
)
explain("E306", "The program needs a mesh and declares none.")
explain(
    "E307", "Two shardings cut one mesh axis at places that have no common refinement, as 4 and 6 of an axis of 12."
)
explain("E308", "A partial annotation is not possible here: the reduction does not exist for the element type.")
explain(
    "E309",
    "The text of a sharding is in none of the spellings: PartitionSpec, HLO's {devices=…} and Shardy's "
    "#sdy.sharding<…>.",
)

explain("E401", "A function, or the body or condition of a loop, ends without `return`, or returns other than it says.")
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
    "An op is not allowed at this stage: collectives belong to SPMD programs and manual regions, annotations to global "
    "programs. docs/collectives.md has what each is for, and what to write in place of JAX's.",
)
explain("E407", "An SPMD program returns a value that differs between devices where its sharding says that they agree.")

explain(
    "E408",
    "A collective is in a loop that some devices of its group leave earlier than others: they would wait for each "
    "other forever. Reduce the loop's condition over those axes first.",
)
explain(
    "E409",
    "A parameter or result of an SPMD program's entry must say, with `of`, which shard of which global tensor it is, "
    "and its own type must be that of one shard. So must a parameter of a manual region. No other value says so.",
)
explain(
    "E410",
    "A manual region's axes are whole axes of the default mesh, each manual once, also where regions nest; its "
    "parameters and results are placed on that mesh, with the manual axes of a dim in front of the free ones.",
)
explain(
    "E411",
    "In a manual region, collectives run along the axes that are manual there, and annotations name the others, the "
    "free ones. So in a function that is called there. docs/manual_regions.md has examples.",
)

explain(
    "E412",
    "JAX runs a program with manual regions partitioned only: unpartitioned there is one device, and a region is "
    "written for several.",
)

explain(
    "E413",
    "A plan contradicts itself: an op's operands or results are not sharded as in its strategy, an op cannot be "
    "split as its strategy says, the steps of a reshard lead elsewhere, or a value has no closed sharding.",
)

explain(
    "E414",
    "What a weight holds at first, as in `w: f32[64, 8] = normal(0.02)`, is a number or a distribution with "
    "its numbers, fits the elements, and is said of parameters of main alone.",
)

explain("E501", "An input of `run` does not fit the program: a wrong name, element type or shape, or one missing.")
explain("E502", "The program needs more devices than there are.")
explain("E503", "jax was initialised with fewer devices than the program needs, before spmdc could ask for more.")
explain(
    "E504",
    "A partitioned program's results are further from those of the unpartitioned one than rounding explains. Sums "
    "taken in another order round differently; --integers draws inputs whose sums are exact. What follows a division, "
    "softmax or other function is not exact on integers either, and argmax, top_k or a comparison of nearly equal "
    "values may fall either way: without --integers such ties are rare.",
)
explain(
    "E505",
    "Running the program here takes more memory than there is. All devices are simulated in one process, and those "
    "that JAX makes of a host's CPU share its memory.",
)

explain(
    "E507",
    "`verify` found a mesh, annotations and inputs with which the partitioned program computes something else than the "
    "unpartitioned one. This is a bug in spmdc: please report it with the program that is printed.",
)
explain(
    "E508",
    "`verify` runs a program many times, on up to 64 simulated devices, and this one is too large for that. Override "
    "the program's consts by small ones (-D name=int): faults show at small sizes as well. Or ask for fewer examples.",
)
explain(
    "E509",
    "`verify --rules` found a factor rule, or a declaration of where an op is linear, that does not hold when the op "
    "is computed in parts. Partitioned programs with that op can be wrong.",
)

explain(
    "E510",
    "An op calls code outside of the program (opaque), and that cannot be called: the runtime of these devices has no "
    "function of that name, or the function refuses its operands. Such code runs only where it is registered for the "
    "kind of device, the host's CPU for evaluating and simulating.",
)

explain(
    "E512",
    "The program calls a Python function on the host by its name, as a program does that was read from text, and none "
    "is registered under that name: spmdc.register_callback(name, function).",
)
explain(
    "E513",
    "A Python function that the program calls on the host gave other results than the program says: another number of "
    "them, other shapes, or element types that cannot be converted to what the program takes. Or a function of JAX "
    "arrays, of which a rule says that it may be applied to parts (jax's custom_partitioning), does not take these, or "
    "gives none.",
)
explain(
    "E514",
    "The memory of an argument is donated, so the devices may write results over it, and the same array is given as "
    "another argument too, which they would read.",
)

explain(
    "E515",
    "XLA, which is to partition the same program for a comparison, does not compile it, ends the process that it runs "
    "in, or takes longer than ten minutes, and says why in the message. That is a fault or a limit of XLA, or of its "
    "backend for CPUs.",
)

explain(
    "E516",
    "There is no such target to compile for: a generation of TPUs and the layout of its chips, as tpu-v3:4x4, which "
    "libtpu must know, and which must have the devices of the mesh: two for each chip up to v4, then one.",
)
explain(
    "E517",
    "Google's compiler for TPUs is in the package libtpu, which is not installed. With it programs are compiled for "
    "TPUs on machines that have none: pip install 'spmdc[tpu]'.",
)
explain(
    "E518",
    "The compiler of a target does not compile the partitioned program, and says why: most often because a device has "
    "less memory than the program takes there.",
)

explain(
    "E519",
    "A checkpoint of a run cannot be continued: it is damaged, is no checkpoint at all, or is of a run that takes "
    "another course, with other weights, data, seed or optimizer. Another mesh is no obstacle, nor are more steps.",
)
explain(
    "E520",
    "The loss of a run, or its gradient, is no number any more. The program was evaluated op by op with the weights "
    "and the data of that step, and the place is the first op that makes such a number of finite ones.",
)
explain(
    "E521",
    "A run of several processes cannot begin, or go on: the mesh has other devices than the processes have together, "
    "there is no cluster to join, or one of the processes has ended. What was computed is in the last checkpoint.",
)

explain("E601", "The command line is not one that spmdc understands.")
explain(
    "E602",
    "The file of a machine is not one that spmdc understands: it is not TOML, a field is missing or unknown, or a "
    "figure makes no sense. docs/machines.md describes all fields.",
)
explain("E603", "No machine has this name, or its network has no such shape. `spmdc machine list` shows all machines.")
explain(
    "E604",
    "The mesh does not lie on the network of the machine: each mesh axis is to be made of parts of the network's dims, "
    "whose sizes divide theirs.",
)
explain(
    "E605", "What was asked for needs a package that is not installed. The message says which extra of spmdc has it."
)

explain(
    "E606",
    "The file of a training is not one that spmdc understands: it is not TOML, a field is missing, unknown or "
    "contradicts another; or its program or its data are none that can be trained. docs/training.md describes all.",
)

explain("W001", "An op cannot be computed on operands split as they are, so they are gathered first.")
explain(
    "W002",
    "An op's operands, its results and what they are made from take more of a device's memory than the limit "
    "(--memory-limit) in every way to compute it that was tried. The one that takes the least was chosen.",
)

explain(
    "W003",
    "What is alive on a device at one time takes more memory than the machine has (--machine): arguments, results, and "
    "what compiled kernels store in between, by an estimate. The largest of it is listed; docs/machines.md says how it "
    "is reckoned.",
)

explain(
    "W004",
    "To take no more of a device's memory than it may (--memory-limit, or memory_limit of a training), a gradient "
    "computes again what blocks of the program compute, instead of keeping it: those that are named. "
    "`checkpoint { … }` in the program chooses them.",
)

explain(
    "E701",
    "The text is not MLIR, or not HLO, that jaxlib's own parser accepts. Its message says what is wrong. The "
    "parsers end the process that they run in over some texts, such as those that are nested too deep, and never end "
    "over others: they run in one of their own, whose last words are then the message, at the line over which it ends.",
)
explain(
    "E702",
    "The module has an op that spmdc cannot import. What StableHLO, CHLO and HLO have for computing with tensors is "
    "imported; ops of other dialects are not.",
)
explain("E703", "A tensor's shape is known only when the program runs. Partitioning needs static shapes.")
explain(
    "E704",
    "The module has effects that a program here cannot have: it sends to another program, or receives from one; it "
    "takes something from the host, or hands it over, in a loop, a choice or a function; it calls code with effects in "
    "a function of elements, which runs in no order; or it is read from text, and calls a Python function, which a "
    "text does not hold. Such calls in JAX functions are imported with spmdc.from_jax and spmdc.jit.",
)
explain(
    "E705",
    "A custom call is given functions of the module, and spmdc does not know what it does with them. Custom calls of "
    "tensors alone become the op opaque, whatever they compute.",
)
explain("E706", "The module has an element type that spmdc has no arithmetic for, such as i7. Convert it.")
explain(
    "E708",
    "The body of a reduce, scatter or window, or the comparator of a sort, is none that spmdc has, and cannot be run "
    "element by element.",
)
explain(
    "E709",
    "The module is partitioned by hand in part: it has collectives, asks which device it runs on, or runs as several "
    "replicas, outside of a region that says which axes are manual, and has annotations that only a program has which "
    "is to be partitioned yet. Or its groups of devices are along no axes of a mesh.",
)

explain(
    "E711",
    "A function that is to be imported or compiled for itself uses values that it does not take as arguments, and that "
    "jax.grad, jax.jit or the like, around it, stand for yet unknown ones. A call of a function of spmdc.jit takes "
    "them along; its program alone needs them as arguments. Or it uses a reference (jax.new_ref) that was made outside "
    "of it, and that it could change: a call of a function of spmdc.jit does so, and a program has results only.",
)
explain(
    "E712",
    "JAX has an op, such as a decomposition of a matrix, for some element types only, and the function computes it of "
    "another; or for some kinds of devices only, and not for the CPU, in whose words functions are imported. Convert "
    "what the op takes to a type that it has, and its result back, or compute it of other ops.",
)
explain(
    "E710",
    "The program has no such gradient: what is differentiated must be a float result, and a scalar one unless it is "
    "named; and what it is differentiated by must be a float parameter. Of code that is no part of the program "
    "(`opaque`) and of Python functions on the host, no derivative is known; and none of the latter may be "
    "called by each device for itself.",
)
