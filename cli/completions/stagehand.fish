# Completion of the stagehand command for fish.

set -l subcommands devices plan run pack unpack report bench top release resume help
complete -c stagehand -n "not __fish_seen_subcommand_from $subcommands" -f
complete -c stagehand -n "not __fish_seen_subcommand_from $subcommands" -a devices -d 'List backends and devices'
complete -c stagehand -n "not __fish_seen_subcommand_from $subcommands" -a plan -d 'Show the plan for a budget'
complete -c stagehand -n "not __fish_seen_subcommand_from $subcommands" -a run -d 'Stream a model and measure the steps'
complete -c stagehand -n "not __fish_seen_subcommand_from $subcommands" -a pack -d 'Pack the weights of a file'
complete -c stagehand -n "not __fish_seen_subcommand_from $subcommands" -a unpack -d 'Unpack a file'
complete -c stagehand -n "not __fish_seen_subcommand_from $subcommands" -a report -d 'Make a page about runs'
complete -c stagehand -n "not __fish_seen_subcommand_from $subcommands" -a bench -d 'Measure a device'
complete -c stagehand -n "not __fish_seen_subcommand_from $subcommands" -a top -d 'Show what a running process does'
complete -c stagehand -n "not __fish_seen_subcommand_from $subcommands" -a release -d 'Have a process give its device memory back'
complete -c stagehand -n "not __fish_seen_subcommand_from $subcommands" -a resume -d 'Have a process take its device memory again'
complete -c stagehand -n "not __fish_seen_subcommand_from $subcommands" -a help -d 'Print the help of a subcommand'
complete -c stagehand -n "not __fish_seen_subcommand_from $subcommands" -l version -d 'Print the version and exit'
complete -c stagehand -s h -l help -d 'Print the help and exit'
complete -c stagehand -n "__fish_seen_subcommand_from devices plan run pack unpack bench top release resume" -l json -d 'Write one JSON object'
complete -c stagehand -n "__fish_seen_subcommand_from devices bench" -f
complete -c stagehand -n "__fish_seen_subcommand_from help" -f -a 'devices plan run pack unpack report bench top release resume'

set -l model "__fish_seen_subcommand_from plan run"
set -l device "__fish_seen_subcommand_from plan run bench"
complete -c stagehand -n $model -l budget -x -a 'auto 10% 25% 50% 75%' -d 'Device memory for weights'
complete -c stagehand -n $device -l device -x -a 'auto host cuda:0 hip:0 sim' -d 'Device'
complete -c stagehand -n $device -l device-option -x -d 'Option of the backend, KEY=VALUE'
complete -c stagehand -n $model -l order -x -a 'forward forward-backward' -d 'Order in which a step uses the blocks'
complete -c stagehand -n $model -l compute-ms -x -d 'Milliseconds that a step computes'
complete -c stagehand -n $model -l max-block -x -d 'Split blocks that are larger'
complete -c stagehand -n $model -l max-header -x -d 'Refuse a model with a larger header'
complete -c stagehand -n $model -l experts -r -d 'Replay a trace of experts'

set -l plan "__fish_seen_subcommand_from plan"
complete -c stagehand -n $plan -l bandwidth -x -d 'Speed of the link from host to device'
complete -c stagehand -n $plan -l unordered -x -d 'Tensors that not every step uses'
complete -c stagehand -n $plan -l kinds -r -d 'Plan for kinds of step that come in turn'
complete -c stagehand -n $plan -l curve -d 'Also plan for other budgets'
complete -c stagehand -n $plan -l svg -r -d 'Draw the curve into this file'
complete -c stagehand -n $plan -l all-blocks -d 'List every block'
complete -c stagehand -n $plan -l training -d 'Plan a training step'
complete -c stagehand -n $plan -l layers -x -d 'Number of layers'
complete -c stagehand -n $plan -l hidden-size -x -d 'Width of a layer input'
complete -c stagehand -n $plan -l heads -x -d 'Heads of the attention'
complete -c stagehand -n $plan -l kv-heads -x -d 'Heads of keys and values'
complete -c stagehand -n $plan -l intermediate-size -x -d 'Width inside the MLP'
complete -c stagehand -n $plan -l gated-mlp -d 'The MLP has a gate'
complete -c stagehand -n $plan -l vocab-size -x -d 'Words of the embedding'
complete -c stagehand -n $plan -l seq-len -x -d 'Tokens of a sequence'
complete -c stagehand -n $plan -l batch-size -x -d 'Sequences of a step'
complete -c stagehand -n $plan -l dtype -x -a 'bf16 fp16 fp32' -d 'Type of weights and activations'
complete -c stagehand -n $plan -l peak -x -d 'Least time under this peak'
complete -c stagehand -n $plan -l slowdown -x -d 'Lowest peak within so many times the plain step'
complete -c stagehand -n $plan -l flops -x -d 'Speed of products of matrices'
complete -c stagehand -n $plan -l step-ms -x -d 'Milliseconds of a plain step'
complete -c stagehand -n $plan -l memory-bandwidth -x -d 'Speed of the memory of the device'

set -l run "__fish_seen_subcommand_from run"
complete -c stagehand -n $run -l steps -x -d 'Number of steps to stream and time'
complete -c stagehand -n $run -l verify -d 'Compare each block on the device with the file'
complete -c stagehand -n $run -l trace -r -d 'Record a trace'
complete -c stagehand -n $run -l helpers -x -d 'Devices whose links bring a part of the weights'
complete -c stagehand -n $run -l telemetry -r -d 'Write one JSON object for each step'
complete -c stagehand -n $run -l report -r -d 'Write a report'
complete -c stagehand -n $run -s q -l quiet -d 'Show no progress'

set -l packing "__fish_seen_subcommand_from pack unpack"
complete -c stagehand -n $packing -s o -l output -r -d 'The file to write'
complete -c stagehand -n $packing -s q -l quiet -d 'Show no progress'
set -l pack "__fish_seen_subcommand_from pack"
complete -c stagehand -n $pack -l threads -x -d 'Pack with so many threads'
complete -c stagehand -n $pack -l verify -d 'Compare each tensor with the file'
complete -c stagehand -n $pack -l all-tensors -d 'List each tensor'

set -l report "__fish_seen_subcommand_from report"
complete -c stagehand -n $report -s o -l output -r -d 'The page to write'
complete -c stagehand -n $report -s q -l quiet -d 'Show no progress'

set -l bench "__fish_seen_subcommand_from bench"
complete -c stagehand -n $bench -l quick -d 'Use less memory and fewer repetitions'
complete -c stagehand -n $bench -l only -x -a '(__fish_append , link pinning staging mapping occupancy streaming graph)' -d 'Measure only these groups'
complete -c stagehand -n $bench -l bytes -x -d 'Bytes that each group copies'
complete -c stagehand -n $bench -l scratch -x -a '(__fish_complete_directories)' -d 'Folder for a temporary file'

set -l top "__fish_seen_subcommand_from top"
complete -c stagehand -n $top -a '(__fish_complete_pids)' -d 'Process'
complete -c stagehand -n $top -l interval -x -d 'Seconds between samples'
complete -c stagehand -n $top -l once -d 'Show one sample and exit'

set -l occupancy "__fish_seen_subcommand_from release resume"
complete -c stagehand -n $occupancy -a '(__fish_complete_pids)' -d 'Process'
complete -c stagehand -n $occupancy -l tag -x -d 'Only this tag'
complete -c stagehand -n $occupancy -l device -x -d 'Device of the process'
complete -c stagehand -n $occupancy -l socket -r -d 'Socket of the control'
complete -c stagehand -n $occupancy -l wait -x -d 'Seconds to wait for other calls'
complete -c stagehand -n "__fish_seen_subcommand_from release" -l drop -d 'Keep no contents'
