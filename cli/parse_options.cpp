#include "parse_options.h"

#include <algorithm>
#include <cctype>
#include <memory>
#include <utility>

#include <fmt/format.h>
#include <stagehand/stagehand.h>
#include <CLI/CLI.hpp>

#include "model/grouping.h"
#include "model/quantity.h"
#include "model/text.h"
#include "option_kinds.h"
#include "parse_problem.h"
#include "terminal.h"
#include "training_options.h"

namespace stagehand::cli {

namespace {

// With fewer bytes a benchmark would measure the cost of calls, not the speed of copies.
constexpr std::uint64_t smallest_bench_bytes = std::uint64_t{32} << 20;

void add_device_options(CLI::App* app, std::string& device, std::string& backend_options, const char* device_help) {
    app->add_option("--device", device, device_help)->type_name("D")->capture_default_str();
    app->add_option_function<std::vector<std::string>>(
           "--device-option",
           [&backend_options](const std::vector<std::string>& entries) {
               for (const std::string& entry : entries) {
                   const auto equals = entry.find('=');
                   if (equals == 0 || equals == std::string::npos || entry.find(';') != std::string::npos)
                       throw CLI::ValidationError(
                           "--device-option", fmt::format("{} is not of the form KEY=VALUE, such as bandwidth=2GB/s",
                                                          model::in_quotes(entry)));
                   backend_options += (backend_options.empty() ? "" : ";") + entry;
               }
           },
           "An option of the device's backend, such as bandwidth=2GB/s; may be given several times")
        ->type_name("KEY=VALUE")
        ->allow_extra_args(false);
}

// `required`: whether MODEL and --budget are, whatever else is given.
void add_model_options(CLI::App* app, ModelOptions& options, const char* device_help, bool required) {
    app->add_option("MODEL", options.model,
                    "A safetensors or GGUF file, the index of a sharded model, a part of a split model, or a folder "
                    "that holds one of these")
        ->required(required)
        ->type_name("");
    add_quantity(app, "--budget", "Device memory for weights: bytes, 512MiB, 2GB, 25% of the model, or auto", "B",
                 [&options](const std::string& text) {
                     options.budget_text = text;
                     if (text != "auto") {
                         options.budget = model::parse_quantity(text);
                     }
                 })
        ->required(required);
    add_device_options(app, options.device, options.backend_options, device_help);
    app->add_option_function<std::string>(
           "--order",
           [&options](const std::string& text) {
               if (text != to_string(Order::forward) && text != to_string(Order::forward_backward))
                   throw CLI::ValidationError(
                       "--order",
                       one_line(fmt::format("{} is not an order; the orders are forward and forward-backward",
                                            model::in_quotes(text))));
               options.order = text == to_string(Order::forward) ? Order::forward : Order::forward_backward;
           },
           "The order in which a step uses the blocks: forward, or forward-backward")
        ->type_name("ORDER")
        ->option_text("ORDER [forward]");
    add_number(app, "--compute-ms", options.compute_ms, 0.0, 1e9, "a number of milliseconds from 0 to 1e9",
               "Milliseconds that a step computes; its blocks share them in proportion to their bytes", "T")
        ->default_str("0");
    add_quantity(app, "--max-block", "Split blocks that are larger than this; by default a quarter of the budget",
                 "SIZE", [&options](const std::string& text) {
                     options.max_block_bytes = model::parse_bytes(text);
                     if (options.max_block_bytes < model::split_bytes) {
                         throw model::QuantityError(fmt::format("{} is too small; the least is {} bytes",
                                                                model::in_quotes(text), model::split_bytes));
                     }
                 });
    add_quantity(
        app, "--max-header", "Refuse a model if the header of a file, or the index, is larger [1GiB]", "SIZE",
        [&options](const std::string& text) {
            options.max_header_bytes = model::parse_bytes(text);
            if (options.max_header_bytes == 0) {
                throw model::QuantityError(fmt::format("{} is too small; the least is 1 byte", model::in_quotes(text)));
            }
        });
    app->add_option("--experts", options.experts,
                    "Replay a trace of the experts that tokens used, one call of a layer on a line, such as "
                    "{\"layer\": 3, \"experts\": [1, 5]}")
        ->type_name("TRACE");
    add_flag(app, "--json", options.json, "Write one JSON object instead of tables");
}

// What both commands refuse beside a trace.
void check_experts(const ModelOptions& options) {
    if (!options.experts.empty() && options.order != Order::forward)
        throw CLI::ValidationError("--order", "forward-backward has no meaning with --experts");
}

// "prefill=300,decode=12:100"
std::vector<KindOption> parse_kinds(const std::string& text) {
    const auto refuse = [](const std::string& item, const char* why) {
        throw CLI::ValidationError("--kinds", one_line(fmt::format("{} {}", model::in_quotes(item), why)));
    };
    std::vector<KindOption> kinds;
    for (const std::string& item : CLI::detail::split(text, ',')) {
        KindOption kind;
        const std::size_t equals = item.find('='), colon = item.find(':', equals == std::string::npos ? 0 : equals);
        kind.name = item.substr(0, equals);
        const bool named = equals != std::string::npos && !kind.name.empty() && kind.name.size() < 64;
        kind.compute_ms = named ? read_number<double>(item.substr(equals + 1, colon - equals - 1)).value_or(-1) : -1;
        if (!(kind.compute_ms >= 0 && kind.compute_ms <= 1e9))
            refuse(item, "is not a kind of step, such as decode=12 (milliseconds) or decode=12:100 (steps in a row)");
        if (colon != std::string::npos) kind.steps = read_number<std::uint32_t>(item.substr(colon + 1)).value_or(0);
        if (kind.steps < 1 || kind.steps > 1000) refuse(item, "does not end with a number of steps from 1 to 1000");
        for (const KindOption& other : kinds)
            if (other.name == kind.name) refuse(item, "names a kind for the second time");
        kinds.push_back(kind);
    }
    if (kinds.size() > 8) refuse(text, "has more than 8 kinds");
    return kinds;
}

void add_plan_options(CLI::App* app, PlanOptions& options) {
    add_model_options(app, options, "Plan for the pages and the link of this device: auto, host, sim, cuda:0, ...",
                      false);
    app->get_option("MODEL")->option_text("(required without --training)");
    app->get_option("--budget")->option_text("B (required without --training)");
    add_quantity(app, "--bandwidth",
                 "Speed of the link from host to device, such as 25GB/s or 200Gbit/s; by default it is measured", "X",
                 [&options](const std::string& text) { options.bandwidth = model::parse_rate(text); });
    app->add_option_function<std::vector<std::string>>(
           "--unordered",
           [&options](const std::vector<std::string>& patterns) {
               for (const std::string& pattern : patterns) {
                   if (pattern.empty()) {
                       throw CLI::ValidationError("--unordered",
                                                  "'' matches no name; give a pattern such as "
                                                  "'*.experts.*'");
                   }
               }
               options.unordered = patterns;
           },
           "Names of tensors that not every step uses, such as '*.experts.*'; may be given several times")
        ->type_name("PATTERN")
        ->allow_extra_args(false);
    app->add_option_function<std::string>(
           "--kinds", [&options](const std::string& text) { options.kinds = parse_kinds(text); },
           "Plan for kinds of step that come in turn, such as prefill=300,decode=12:100: names, milliseconds that a "
           "step computes, and steps in a row")
        ->type_name("NAME=T[:STEPS],...");
    add_flag(app, "--curve", options.curve, "Also plan for other budgets, and show the step time for each");
    app->add_option_function<std::string>(
           "--svg", [&options](const std::string& path) { options.svg = path; },
           "Draw the curve, or with --training the memory over the step, as a picture into this SVG file")
        ->type_name("FILE");
    add_flag(app, "--all-blocks", options.all_blocks, "List every block on a line of its own");
    add_training_options(app, options);
    app->parse_complete_callback([app, &options] {
        check_plan_options(*app, options);
        check_experts(options);
    });
}

void add_devices_options(CLI::App* app, DevicesOptions& options) {
    add_flag(app, "--json", options.json, "Write one JSON object instead of tables");
}

// With a trace, the steps are its tokens.
void check_run_options(const CLI::App& app, const RunOptions& options) {
    const bool has_steps = app.get_option("--steps")->count() > 0;
    if (options.experts.empty() && !has_steps) throw CLI::RequiredError("--steps");
    if (options.experts.empty()) return;
    if (has_steps) throw CLI::ValidationError("--steps", "has no meaning with --experts, which has the steps");
    check_experts(options);
}

void add_run_options(CLI::App* app, RunOptions& options) {
    add_model_options(app, options,
                      "Stream to this device: host, cuda:0, ...; auto is the first GPU that works, otherwise host",
                      true);
    add_number<std::uint64_t>(app, "--steps", options.steps, 1, 1'000'000'000, "a whole number from 1 to 1000000000",
                              "The number of steps to stream and time", "N")
        ->option_text("N (required without --experts, which has a step for each token)");
    app->parse_complete_callback([app, &options] { check_run_options(*app, options); });
    app->add_option("--helpers", options.helpers,
                    "Devices of the same backend whose links bring a part of the weights, such as cuda:1,cuda:2")
        ->type_name("D[,D...]");
    add_flag(app, "--verify", options.verify,
             "Then stream as many steps again, and compare each block on the device with the file");
    app->add_option("--trace", options.trace,
                    "Record planning, loading and the timed steps into a trace for Perfetto or chrome://tracing")
        ->type_name("FILE");
    app->add_option("--telemetry", options.telemetry, "Write one JSON object for each timed step, each on a line")
        ->type_name("FILE");
    app->add_option("--report", options.report, "Write a report of the timed steps, one HTML page")->type_name("FILE");
    add_flag(app, "-q,--quiet", options.quiet, "Show no progress");
}

void add_pack_options(CLI::App* app, PackOptions& options) {
    app->add_option("MODEL", options.model, "A safetensors file")->required()->type_name("");
    app->add_option("-o,--output", options.output, "The packed file to write, or the folder for shards")
        ->required()
        ->type_name("FILE");
    add_number<std::uint32_t>(app, "--threads", options.threads, 1, 1024, "a whole number from 1 to 1024",
                              "Pack with so many threads; by default one for each processor", "N");
    add_flag(app, "--verify", options.verify, "Then unpack what was written, and compare each tensor with MODEL");
    add_flag(app, "--all-tensors", options.all_tensors, "List each tensor instead of each type of element");
    add_flag(app, "--json", options.json, "Write one JSON object instead of a table");
    add_flag(app, "-q,--quiet", options.quiet, "Show no progress");
}

void add_unpack_options(CLI::App* app, PackOptions& options) {
    app->add_option("PACKED", options.model, "A file or a folder that `stagehand pack` has written")
        ->required()
        ->type_name("");
    app->add_option("-o,--output", options.output, "The safetensors file to write, or the folder for shards")
        ->required()
        ->type_name("FILE");
    add_flag(app, "--json", options.json, "Write one JSON object instead of a line");
    add_flag(app, "-q,--quiet", options.quiet, "Show no progress");
}

void add_report_options(CLI::App* app, ReportOptions& options) {
    app->add_option("FILES", options.files,
                    "The telemetry of a run (RUN.jsonl), and behind it the run's trace, if there is one; then those of "
                    "further runs")
        ->required()
        ->type_name("");
    app->add_option("-o,--output", options.output, "The HTML page to write")->required()->type_name("FILE");
    add_flag(app, "-q,--quiet", options.quiet, "Show no progress");
}

// The names of groups in a text such as "link,streaming".
std::vector<std::string> group_names(const std::string& text) {
    const std::vector<std::string>& known = bench_groups();
    std::vector<std::string> names;
    for (const std::string& name : CLI::detail::split(text, ',')) {
        if (std::find(known.begin(), known.end(), name) == known.end()) {
            throw CLI::ValidationError("--only", one_line(fmt::format("{} is not a group; the groups are {}",
                                                                      model::in_quotes(name), fmt::join(known, ", "))));
        }
        names.push_back(name);
    }
    return names;
}

void add_bench_options(CLI::App* app, BenchOptions& options) {
    add_device_options(app, options.device, options.backend_options,
                       "Measure this device: host, cuda:0, ...; auto is the first GPU that works, otherwise host");
    add_flag(app, "--quick", options.quick, "Use less memory and fewer repetitions, so that it takes a few seconds");
    app->add_option_function<std::string>(
           "--only", [&options](const std::string& text) { options.only = group_names(text); },
           fmt::format("Measure only these groups of {}", fmt::join(bench_groups(), ", ")))
        ->type_name("GROUP,...");
    add_quantity(
        app, "--bytes", "The bytes that each group copies; by default it depends on the device", "SIZE",
        [&options](const std::string& text) {
            options.bytes = model::parse_bytes(text);
            if (options.bytes < smallest_bench_bytes) {
                throw model::QuantityError(fmt::format("{} is too small; the least is 32MiB", model::in_quotes(text)));
            }
        });
    app->add_option("--scratch", options.scratch, "The folder for a temporary file; by default $TMPDIR, or /tmp")
        ->type_name("DIR");
    add_flag(app, "--json", options.json, "Write one JSON object instead of tables");
}

void add_top_options(CLI::App* app, TopOptions& options) {
    app->add_option("PROCESS", options.process,
                    "A process id, or the path of a process's socket; by default the only process that answers")
        ->type_name("");
    add_number(app, "--interval", options.interval_seconds, 0.05, 86400.0, "a number of seconds from 0.05 to 86400",
               "Seconds from one sample to the next", "T")
        ->default_str("1");
    add_flag(app, "--once", options.once, "Show one sample and exit");
    add_flag(app, "--json", options.json, "Write one JSON object for each sample, each on a line");
}

void add_occupancy_options(CLI::App* app, OccupancyOptions& options) {
    app->add_option("PROCESS", options.process,
                    "A process id, or the path of a control's socket; by default the only process that answers")
        ->type_name("");
    app->add_option("--tag", options.tags, "A tag, such as weights; may be given several times; by default all tags")
        ->type_name("TAG")
        ->allow_extra_args(false);
    app->add_option("--device", options.device, "The device, if the process serves several")->type_name("D");
    app->add_option("--socket", options.socket, "The path of the control's socket, instead of PROCESS")
        ->type_name("PATH");
    if (!options.resumes) add_flag(app, "--drop", options.drop, "Keep no contents: they are lost");
    add_number(app, "--wait", options.wait_seconds, 0.0, 3600.0, "a number of seconds from 0 to 3600",
               "Seconds to wait for other calls that stand in the way", "T")
        ->default_str("5");
    add_flag(app, "--json", options.json, "Write the process's answer, one JSON object");
}

std::string version_line() {
    const std::uint32_t version = sh_version();
    return fmt::format("stagehand {}.{}.{}", version / 1000000, version / 1000 % 1000, version % 1000);
}

constexpr const char* exit_codes =
    "Exit codes: 0 success; 1 bytes differ from the file, a step failed, or a process refused;\n"
    "2 wrong command line; "
    "3 bad model; 4 no such device or process, or too small a budget; 5 an output could not be "
    "written; 130 interrupted.";

constexpr const char* subcommand_names =
    "devices, plan, run, pack, unpack, report, bench, top, release, resume and help";

// "help" and "help plan" become "--help" and "plan --help". Other arguments stay as they are.
std::vector<std::string> arguments_of(int argc, char** argv) {
    std::vector<std::string> arguments(argv + std::min(argc, 1), argv + argc);
    if (!arguments.empty() && arguments.front() == "help") {
        arguments.erase(arguments.begin());
        if (!arguments.empty() && (arguments.front() == "help" || arguments.front().starts_with("-")))
            arguments.clear();
        arguments.emplace_back("--help");
    }
    return arguments;
}

// A subcommand. Parsing its name and options sets what the command line asks for.
template <typename Options>
void add_subcommand(CLI::App& app, CommandLine& line, const char* name, const char* what,
                    void (*add_options)(CLI::App*, Options&), int (*command)(const Options&), Options initial = {}) {
    const auto options = std::make_shared<Options>(std::move(initial));
    CLI::App* const added = app.add_subcommand(name, what);
    add_options(added, *options);
    added->final_callback([&line, options, command] { line.run = [options, command] { return command(*options); }; });
}

void add_subcommands(CLI::App& app, CommandLine& line) {
    add_subcommand(app, line, "devices", "List backends and devices, their memory and copy speeds", add_devices_options,
                   devices_command);
    add_subcommand(app, line, "plan", "Show the plan for a budget, without streaming", add_plan_options, plan_command);
    add_subcommand(app, line, "run", "Stream a model's weights and measure the steps", add_run_options, run_command);
    add_subcommand(app, line, "pack", "Pack the floating-point weights of a file without loss", add_pack_options,
                   pack_command);
    add_subcommand(app, line, "unpack", "Unpack a file that was packed", add_unpack_options, unpack_command);
    add_subcommand(app, line, "report", "Make an HTML page about runs, from their telemetry and traces",
                   add_report_options, report_command);
    add_subcommand(app, line, "bench", "Measure a device, and compare each figure with a limit of the same run",
                   add_bench_options, bench_command);
    add_subcommand(app, line, "top", "Show what the devices and runtimes of a running process do", add_top_options,
                   top_command);
    add_subcommand(app, line, "release", "Have a running process give the memory of its device back",
                   add_occupancy_options, occupancy_command);
    add_subcommand(app, line, "resume", "Have a running process take its device memory again", add_occupancy_options,
                   occupancy_command, {.resumes = true});
    // For the list of subcommands only: arguments_of() has replaced it before anything is parsed.
    app.add_subcommand("help", "Print this help, or the help of a subcommand, and exit");
}

}  // namespace

CommandLine parse_command_line(int argc, char** argv) {
    CommandLine line;
    CLI::App app("Streams a model's weights through a budget of device memory.", "stagehand");
    app.set_version_flag("--version", version_line, "Print the version and exit");
    app.set_help_flag("-h,--help", "Print this help and exit");
    app.get_formatter()->column_width(26);
    app.get_formatter()->label("REQUIRED", "(required)");
    app.footer(exit_codes);
    app.require_subcommand(1);

    add_subcommands(app, line);

    std::vector<std::string> arguments = arguments_of(argc, argv);
    const std::string first = arguments.empty() ? "" : arguments.front();
    const bool known =
        first.starts_with("-")
            ? app.get_option_no_throw(first) != nullptr
            : !app.get_subcommands([&](const CLI::App* sub) { return sub->get_name() == first; }).empty();
    if (!first.empty() && !known) {
        const std::string quoted = model::in_quotes(first);
        line.problem =
            fmt::format("{}; the subcommands are {}",
                        first.starts_with("-") ? fmt::format("stagehand has no option {} before a subcommand", quoted)
                                               : fmt::format("there is no subcommand {}", quoted),
                        subcommand_names);
        return line;
    }
    std::reverse(arguments.begin(), arguments.end());  // the parser takes them from the back
    try {
        app.parse(std::move(arguments));
    } catch (const CLI::ParseError& error) {
        const auto chosen = app.get_subcommands();
        line.subcommand = chosen.empty() ? "" : chosen.front()->get_name();
        if (error.get_exit_code() == 0) {
            app.exit(error);
            line.run = [] {
                finish_output();
                return 0;
            };
            line.subcommand.clear();
            return line;
        }
        if (!chosen.empty())
            line.problem = one_line(problem_of(error, *chosen.front()));
        else if (first.empty())
            line.problem = fmt::format("a subcommand is required; the subcommands are {}", subcommand_names);
        else
            line.problem = one_line(problem_of(error, app));
        return line;
    }
    line.subcommand = app.get_subcommands().front()->get_name();
    return line;
}

}  // namespace stagehand::cli
