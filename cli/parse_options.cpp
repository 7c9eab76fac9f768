#include "parse_options.h"

#include <algorithm>
#include <cmath>

#include <fmt/format.h>
#include <stagehand/stagehand.h>
#include <CLI/CLI.hpp>

#include "model/grouping.h"
#include "model/quantity.h"
#include "model/text.h"
#include "terminal.h"

namespace stagehand::cli {

namespace {

// Less would measure calls, not bytes.
constexpr std::uint64_t smallest_bench_bytes = std::uint64_t{32} << 20;

// Messages are one line, whatever the command line holds.
std::string one_line(std::string_view text) { return model::printable(text, 400); }

// A check that fails with the text of a QuantityError.
template <typename Parse>
CLI::Option* add_quantity(CLI::App* app, const std::string& flag, const std::string& what, const char* type,
                          Parse parse) {
    return app
        ->add_option_function<std::string>(
            flag,
            [flag, parse](const std::string& text) {
                try {
                    parse(text);
                } catch (const model::QuantityError& error) {
                    throw CLI::ValidationError(flag, one_line(error.what()));
                }
            },
            what)
        ->type_name(type);
}

void add_device_options(CLI::App* app, std::string& device, std::string& backend_options,
                        const char* device_help) {
    app->add_option("--device", device, device_help)->type_name("D")->capture_default_str();
    app->add_option_function<std::vector<std::string>>(
           "--device-option",
           [&backend_options](const std::vector<std::string>& entries) {
               for (const std::string& entry : entries) {
                   const auto equals = entry.find('=');
                   if (equals == 0 || equals == std::string::npos || entry.find(';') != std::string::npos) {
                       throw CLI::ValidationError(
                           "--device-option", fmt::format("{} is not KEY=VALUE", model::in_quotes(entry)));
                   }
                   backend_options += (backend_options.empty() ? "" : ";") + entry;
               }
           },
           "An option of the device's backend, such as bandwidth; may be repeated")
        ->type_name("KEY=VALUE")
        ->allow_extra_args(false);
}

void add_model_options(CLI::App* app, ModelOptions& options, const char* device_help) {
    app->add_option(
           "MODEL", options.model,
           "A safetensors or GGUF file, the index of a sharded model, one part of a split one, or the folder")
        ->required()
        ->type_name("");
    add_quantity(app, "--budget", "Device memory for weights: bytes, 512MiB, 2GB, 25% of the model, or auto",
                 "B",
                 [&options](const std::string& text) {
                     if (text != "auto") {
                         options.budget = model::parse_quantity(text);
                     }
                 })
        ->required();
    add_device_options(app, options.device, options.backend_options, device_help);
    app->add_option_function<std::string>(
           "--order",
           [&options](const std::string& text) {
               if (text != to_string(Order::forward) && text != to_string(Order::forward_backward)) {
                   throw CLI::ValidationError(
                       "--order", one_line(fmt::format("{} is neither forward nor forward-backward",
                                                       model::in_quotes(text))));
               }
               options.order = text == to_string(Order::forward) ? Order::forward : Order::forward_backward;
           },
           "How a step uses the blocks: forward, or forward-backward")
        ->type_name("ORDER")
        ->option_text("ORDER [forward]");
    app->add_option("--compute-ms", options.compute_ms,
                    "Milliseconds that a step computes, shared among its blocks by their bytes")
        ->check([](const std::string& text) {
            double value = 0;
            const bool number = CLI::detail::lexical_cast(text, value) && std::isfinite(value);
            return number && value >= 0 && value <= 1e9
                       ? std::string()
                       : one_line(fmt::format("{} is not a number of milliseconds from 0 to 1e9",
                                              model::in_quotes(text)));
        })
        ->type_name("T")
        ->capture_default_str();
    add_quantity(app, "--max-block", "Split blocks larger than this; by default a quarter of the budget",
                 "SIZE", [&options](const std::string& text) {
                     options.max_block_bytes = model::parse_bytes(text);
                     if (options.max_block_bytes < model::split_bytes) {
                         throw model::QuantityError(fmt::format("{} is less than {} bytes",
                                                                model::in_quotes(text), model::split_bytes));
                     }
                 });
    add_quantity(
        app, "--max-header", "Refuse models with a larger header, in one file or the index [1GiB]", "SIZE",
        [&options](const std::string& text) {
            options.max_header_bytes = model::parse_bytes(text);
            if (options.max_header_bytes == 0) {
                throw model::QuantityError(fmt::format("{} leaves nothing to read", model::in_quotes(text)));
            }
        });
    app->add_flag("--json", options.json, "Write one JSON object instead of tables");
}

void add_plan_options(CLI::App* app, PlanOptions& options) {
    add_model_options(app, options, "Plan for this device's pages and link: auto, host, sim, cuda:0, ...");
    add_quantity(app, "--bandwidth",
                 "Bytes a second from host to device, such as 25GB/s; by default measured", "X",
                 [&options](const std::string& text) { options.bandwidth = model::parse_rate(text); });
    app->add_flag("--curve", options.curve, "Also plan for other budgets: time against budget");
    app->add_option_function<std::string>(
           "--svg",
           [&options](const std::string& path) {
               options.svg = path;
               options.curve = true;
           },
           "Draw the curve as a picture into this file; means --curve")
        ->type_name("FILE");
    app->add_flag("--all-blocks", options.all_blocks, "List each block, however many there are");
}

void add_run_options(CLI::App* app, RunOptions& options) {
    add_model_options(
        app, options,
        "Stream to this device: host, cuda:0, ...; auto is the first GPU that works, else host");
    app->add_option("--steps", options.steps, "Steps to stream and time")
        ->required()
        ->check([](const std::string& text) {
            std::uint64_t value = 0;
            const bool number = CLI::detail::lexical_cast(text, value);
            return number && value >= 1 && value <= 1'000'000'000
                       ? std::string()
                       : one_line(fmt::format("{} is not a number from 1 to 1,000,000,000",
                                              model::in_quotes(text)));
        })
        ->type_name("N");
    app->add_flag("--verify", options.verify,
                  "Stream as many steps again, in which each block on the device is compared with the file");
    app->add_option("--trace", options.trace,
                    "Record planning, loading and timed steps for Perfetto or chrome://tracing")
        ->type_name("FILE");
    app->add_option("--telemetry", options.telemetry, "Write one JSON object a timed step")
        ->type_name("FILE");
    app->add_flag("-q,--quiet", options.quiet, "No progress");
}

// "link,streaming" as its parts, each the name of a group.
std::vector<std::string> group_names(const std::string& text) {
    const std::vector<std::string>& known = bench_groups();
    std::vector<std::string> names;
    for (const std::string& name : CLI::detail::split(text, ',')) {
        if (std::find(known.begin(), known.end(), name) == known.end()) {
            throw CLI::ValidationError("--only", one_line(fmt::format("{} is none of {}", model::in_quotes(name),
                                                                      fmt::join(known, ", "))));
        }
        names.push_back(name);
    }
    return names;
}

void add_bench_options(CLI::App* app, BenchOptions& options) {
    add_device_options(app, options.device, options.backend_options,
                       "Measure this device: host, cuda:0, ...; auto is the first GPU that works, else host");
    app->add_flag("--quick", options.quick, "Work on less, and repeat less: some seconds");
    app->add_option_function<std::string>(
           "--only", [&options](const std::string& text) { options.only = group_names(text); },
           fmt::format("Only these of {}", fmt::join(bench_groups(), ", ")))
        ->type_name("GROUP,...");
    add_quantity(app, "--bytes", "What each group works on; by default it depends on the device", "SIZE",
                 [&options](const std::string& text) {
                     options.bytes = model::parse_bytes(text);
                     if (options.bytes < smallest_bench_bytes) {
                         throw model::QuantityError(fmt::format("{} is less than {}", model::in_quotes(text),
                                                                model::format_bytes(smallest_bench_bytes)));
                     }
                 });
    app->add_option("--scratch", options.scratch, "Folder for a temporary file; by default $TMPDIR, or /tmp")
        ->type_name("DIR");
    app->add_flag("--json", options.json, "Write one JSON object instead of tables");
}

void add_top_options(CLI::App* app, TopOptions& options) {
    app->add_option("PROCESS", options.process,
                    "A process id, or the path of a process's socket; by default the only one that answers")
        ->type_name("");
    app->add_option("--interval", options.interval_seconds, "Seconds from one sample to the next")
        ->check([](const std::string& text) {
            double value = 0;
            const bool number = CLI::detail::lexical_cast(text, value) && std::isfinite(value);
            return number && value >= 0.05 && value <= 86400
                       ? std::string()
                       : one_line(fmt::format("{} is not a number of seconds from 0.05 to 86400",
                                              model::in_quotes(text)));
        })
        ->type_name("T")
        ->capture_default_str();
    app->add_flag("--once", options.once, "Show what happened in one interval, and end");
    app->add_flag("--json", options.json, "Write one JSON object a sample, each on a line");
}

std::string version_line() {
    const std::uint32_t version = sh_version();
    return fmt::format("stagehand {}.{}.{}", version / 1000000, version / 1000 % 1000, version % 1000);
}

constexpr const char* exit_codes =
    "Exit codes: 0 success; 1 bytes on the device differ from the file, or a step failed; 2 wrong command "
    "line;\n"
    "3 bad model; 4 no such device or process, or too small a budget; 5 an output could not be "
    "written; 130 interrupted.";

}  // namespace

CommandLine::Outcome CommandLine::parse(int argc, char** argv) {
    CLI::App app("Streams a model's weights through a budget of device memory.", "stagehand");
    app.set_version_flag("--version", version_line, "Print the version and exit");
    app.set_help_flag("-h,--help", "Print this help and exit");
    app.get_formatter()->column_width(26);
    app.get_formatter()->label("REQUIRED", "(required)");
    app.footer(exit_codes);
    app.require_subcommand(1);

    CLI::App* devices_app =
        app.add_subcommand("devices", "List backends and devices, their memory and copy speeds");
    devices_app->add_flag("--json", devices.json, "Write one JSON object instead of tables");
    CLI::App* plan_app = app.add_subcommand("plan", "Tell what a budget would give, without streaming");
    add_plan_options(plan_app, plan);
    CLI::App* run_app = app.add_subcommand("run", "Stream a model's weights and measure it");
    add_run_options(run_app, run);
    CLI::App* bench_app =
        app.add_subcommand("bench", "Measure a device, each figure against its limit in the same run");
    add_bench_options(bench_app, bench);
    CLI::App* top_app =
        app.add_subcommand("top", "Show what a running process's devices and runtimes do");
    add_top_options(top_app, top);

    try {
        app.parse(argc, argv);
    } catch (const CLI::ParseError& error) {
        const auto chosen = app.get_subcommands();
        subcommand_ = chosen.empty() ? "" : chosen.front()->get_name();
        if (error.get_exit_code() == 0) {
            app.exit(error);
            return Outcome::answered;
        }
        problem_ = one_line(error.what());
        // The parser would only say that a subcommand is missing.
        if (argc <= 1) {
            problem_ = "a subcommand is required: devices, plan, run, bench or top";
        } else if (chosen.empty()) {
            problem_ = fmt::format("there is no {} {}; the subcommands are devices, plan, run, bench and top",
                                   argv[1][0] == '-' ? "option" : "subcommand", model::in_quotes(argv[1]));
        }
        return Outcome::refused;
    }
    return devices_app->parsed() ? Outcome::devices
           : plan_app->parsed()  ? Outcome::plan
           : run_app->parsed()   ? Outcome::run
           : bench_app->parsed() ? Outcome::bench
                                 : Outcome::top;
}

}  // namespace stagehand::cli
