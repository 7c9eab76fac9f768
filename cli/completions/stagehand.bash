# Completion of the stagehand command for bash.

_stagehand()
{
    local current previous subcommand word options
    current=${COMP_WORDS[COMP_CWORD]}
    previous=${COMP_WORDS[COMP_CWORD-1]}
    COMPREPLY=()
    for word in "${COMP_WORDS[@]:1:COMP_CWORD-1}"; do
        case $word in
            devices|plan|run|pack|unpack|report|bench|top|release|resume|help)
                subcommand=$word
                break
                ;;
        esac
    done

    case $previous in
        --device)
            # Readline splits words at colons, so the number of a device is not completed.
            mapfile -t COMPREPLY < <(compgen -W "auto host cuda hip sim" -- "$current")
            return
            ;;
        --order)
            mapfile -t COMPREPLY < <(compgen -W "forward forward-backward" -- "$current")
            return
            ;;
        --dtype)
            mapfile -t COMPREPLY < <(compgen -W "bf16 fp16 fp32" -- "$current")
            return
            ;;
        --budget)
            mapfile -t COMPREPLY < <(compgen -W "auto 10% 25% 50% 75%" -- "$current")
            return
            ;;
        --experts|--svg|--trace|--telemetry|--report|-o|--output)
            compopt -o filenames 2>/dev/null
            mapfile -t COMPREPLY < <(compgen -f -- "$current")
            return
            ;;
        --only)
            # Only the part behind the last comma is completed.
            local before=""
            [[ $current != *,* ]] || before=${current%,*},
            mapfile -t COMPREPLY < <(compgen -P "$before" -W "link pinning staging mapping occupancy streaming graph" -- "${current##*,}")
            return
            ;;
        --scratch)
            compopt -o filenames 2>/dev/null
            mapfile -t COMPREPLY < <(compgen -d -- "$current")
            return
            ;;
        --layers|--hidden-size|--heads|--kv-heads|--intermediate-size|--vocab-size|--seq-len|--batch-size|--peak|--slowdown|--flops|--step-ms|--memory-bandwidth)
            return
            ;;
        --bandwidth|--bytes|--compute-ms|--device-option|--max-block|--max-header|--steps|--threads|--interval|--unordered)
            return
            ;;
    esac

    case $subcommand in
        devices)
            options="--help --json"
            ;;
        plan)
            options="--help --budget --device --device-option --order --compute-ms --max-block --max-header --experts --json
                     --bandwidth --unordered --kinds --curve --svg --all-blocks --training --layers --hidden-size
                     --heads --kv-heads --intermediate-size --gated-mlp --vocab-size --seq-len --batch-size --dtype --peak
                     --slowdown --flops --step-ms --memory-bandwidth"
            ;;
        run)
            options="--help --budget --device --device-option --order --compute-ms --max-block --max-header --experts --json
                     --steps --helpers --verify --trace --telemetry --report --quiet"
            ;;
        pack)
            options="--help --output --threads --verify --all-tensors --json --quiet"
            ;;
        unpack)
            options="--help --output --json --quiet"
            ;;
        report)
            options="--help --output --quiet"
            ;;
        bench)
            options="--help --device --device-option --quick --only --bytes --scratch --json"
            ;;
        top)
            options="--help --interval --once --json"
            ;;
        release)
            options="--help --tag --device --socket --drop --wait --json"
            ;;
        resume)
            options="--help --tag --device --socket --wait --json"
            ;;
        help)
            options="devices plan run pack unpack report bench top release resume"
            ;;
        *)
            options="devices plan run pack unpack report bench top release resume help --help --version"
            ;;
    esac
    if [[ -z $subcommand || $subcommand == help || $current == -* ]]; then
        mapfile -t COMPREPLY < <(compgen -W "$options" -- "$current")
    elif [[ $subcommand == plan || $subcommand == run || $subcommand == *pack || $subcommand == report ]]; then
        compopt -o filenames 2>/dev/null
        mapfile -t COMPREPLY < <(compgen -f -- "$current")
    elif [[ $subcommand == top || $subcommand == release || $subcommand == resume ]]; then
        # The numbers in /proc are process ids.
        mapfile -t COMPREPLY < <(cd /proc && compgen -G "$current[0-9]*" | grep -x '[0-9]*')
    fi
}

complete -F _stagehand stagehand
