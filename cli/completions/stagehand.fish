# Completion of the stagehand command for fish.

set -l subcommands devices plan run bench top
complete -c stagehand -n "not __fish_seen_subcommand_from $subcommands" -f
complete -c stagehand -n "not __fish_seen_subcommand_from $subcommands" -a devices -d 'List backends and devices'
complete -c stagehand -n "not __fish_seen_subcommand_from $subcommands" -a plan -d 'Tell what a budget would give'
complete -c stagehand -n "not __fish_seen_subcommand_from $subcommands" -a run -d 'Stream and measure'
complete -c stagehand -n "not __fish_seen_subcommand_from $subcommands" -a bench -d 'Measure a device'
complete -c stagehand -n "not __fish_seen_subcommand_from $subcommands" -a top -d 'Show what a process does'
complete -c stagehand -n "not __fish_seen_subcommand_from $subcommands" -l version -d 'Print the version'
complete -c stagehand -s h -l help -d 'Print help'
complete -c stagehand -n "__fish_seen_subcommand_from $subcommands" -l json -d 'Write one JSON object'
complete -c stagehand -n "__fish_seen_subcommand_from devices bench" -f

set -l model "__fish_seen_subcommand_from plan run"
set -l device "__fish_seen_subcommand_from plan run bench"
complete -c stagehand -n $model -l budget -x -a 'auto 10% 25% 50% 75%' -d 'Device memory for weights'
complete -c stagehand -n $device -l device -x -a 'auto host cuda:0 hip:0 sim' -d 'Device'
complete -c stagehand -n $device -l device-option -x -d 'Option of the backend, KEY=VALUE'
complete -c stagehand -n $model -l order -x -a 'forward forward-backward' -d 'How a step uses the blocks'
complete -c stagehand -n $model -l compute-ms -x -d 'Milliseconds that a step computes'
complete -c stagehand -n $model -l max-block -x -d 'Split larger blocks'
complete -c stagehand -n $model -l max-header -x -d 'Refuse larger headers'

set -l plan "__fish_seen_subcommand_from plan"
complete -c stagehand -n $plan -l bandwidth -x -d 'Bytes a second from host to device'
complete -c stagehand -n $plan -l curve -d 'Also plan for other budgets'
complete -c stagehand -n $plan -l svg -r -d 'Draw the curve into this file'
complete -c stagehand -n $plan -l all-blocks -d 'List each block'

set -l run "__fish_seen_subcommand_from run"
complete -c stagehand -n $run -l steps -x -d 'Steps to stream and time'
complete -c stagehand -n $run -l verify -d 'Compare each block with the file'
complete -c stagehand -n $run -l trace -r -d 'Record a trace'
complete -c stagehand -n $run -l telemetry -r -d 'Write one JSON object a step'
complete -c stagehand -n $run -s q -l quiet -d 'No progress'

set -l bench "__fish_seen_subcommand_from bench"
complete -c stagehand -n $bench -l quick -d 'Work on less, and repeat less'
complete -c stagehand -n $bench -l only -x -a '(__fish_append , link pinning staging mapping streaming graph)' -d 'Only these groups'
complete -c stagehand -n $bench -l bytes -x -d 'What each group works on'
complete -c stagehand -n $bench -l scratch -x -a '(__fish_complete_directories)' -d 'Folder for a temporary file'

set -l top "__fish_seen_subcommand_from top"
complete -c stagehand -n $top -a '(__fish_complete_pids)' -d 'Process'
complete -c stagehand -n $top -l interval -x -d 'Seconds between samples'
complete -c stagehand -n $top -l once -d 'One sample only'
