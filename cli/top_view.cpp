// The tables of `stagehand top`.
#include "top_sample.h"

#include <fmt/format.h>

#include "model/quantity.h"
#include "model/text.h"
#include "table.h"
#include "units.h"

namespace stagehand::cli {

namespace {

constexpr std::size_t name_width = 28;

// Makes a name printable: engines choose names, which may hold any characters.
std::string shown(const std::string& name) { return shortened(model::printable(name, 120), name_width); }

std::string bytes(std::uint64_t value) { return model::format_bytes(value); }

std::string rate(const std::optional<double>& bytes_per_second) {
    return bytes_per_second ? model::format_rate(*bytes_per_second) : "-";
}

std::string share(const std::optional<double>& value) { return value ? fmt::format("{:.0f} %", 100 * *value) : "-"; }

std::string per_second(const std::optional<double>& value) {
    return !value ? "-" : *value < 100 ? fmt::format("{:.1f}", *value) : fmt::format("{:.0f}", *value);
}

std::string head(const Terminal& terminal, const Sample& sample) {
    std::size_t runtimes = 0;
    for (const DeviceSample& device : sample.devices) runtimes += device.runtimes.size();
    std::string line =
        fmt::format("{}  process {}, libstagehand {}, {}, {}", inked(terminal, Ink::bold, shown(sample.program)),
                    sample.pid, sample.library, counted(sample.devices.size(), "device"), counted(runtimes, "runtime"));
    if (sample.busy > 0) line += fmt::format(", {} busy and left out", sample.busy);
    return legible(terminal, line) + "\n";
}

// Whether a speed is above the speed of the link that plans count with, by so much that more than 100 % is shown.
bool above_link(const std::optional<double>& link_share) { return link_share && *link_share >= 1.005; }

// A note on shares of the link above 100 %, if there are any.
std::string link_note(const Sample& sample) {
    bool above = false;
    for (const DeviceSample& device : sample.devices) {
        above = above || above_link(device.link_share);
        for (const RuntimeSample& runtime : device.runtimes) above = above || above_link(runtime.link_share);
    }
    return above
               ? "\nMore than 100 % of the link: the link is faster than the speed that was measured or given for it.\n"
               : "";
}

std::string device_table(const Terminal& terminal, const Sample& sample) {
    Table table({{"device"},
                 {"budget", Align::right},
                 {"used", Align::right},
                 {"free", Align::right},
                 {"reserved", Align::right},
                 {"guests", Align::right},
                 {"protected", Align::right},
                 {"headroom", Align::right},
                 {"link", Align::right},
                 {"in use", Align::right},
                 {"of it", Align::right}});
    std::string problems;
    for (const DeviceSample& device : sample.devices) {
        const std::string link =
            device.link_bytes_per_second > 0 ? model::format_rate(device.link_bytes_per_second) : "-";
        if (device.problem.empty()) {
            table.add({shown(device.name), bytes(device.figures["budget_bytes"]), bytes(device.figures["used_bytes"]),
                       bytes(device.figures["free_bytes"]), bytes(device.figures["reserved_bytes"]),
                       bytes(device.figures["guest_bytes"]), bytes(device.figures["protected_bytes"]),
                       bytes(device.figures["headroom_bytes"]), link, rate(device.bytes_per_second),
                       share(device.link_share)});
        } else {
            table.add({shown(device.name), "-", "-", "-", "-", "-", "-", "-", link, rate(device.bytes_per_second),
                       share(device.link_share)});
            problems += fmt::format("{}: {}\n", shown(device.name), model::printable(device.problem));
        }
    }
    return table.text(terminal) + inked(terminal, Ink::bad, problems);
}

std::string runtime_table(const Terminal& terminal, const Sample& sample) {
    // The most important columns come first, because narrow terminals cut off the others.
    Table table({{"runtime"},
                 {"device"},
                 {"steps/s", Align::right},
                 {"link", Align::right},
                 {"of it", Align::right},
                 {"stalled", Align::right},
                 {"held", Align::right},
                 {"share", Align::right},
                 {"resident", Align::right},
                 {"ring", Align::right},
                 {"unordered", Align::right},
                 {"protected", Align::right},
                 {"reserved", Align::right},
                 {"guest", Align::right},
                 {"given up", Align::right},
                 {"stalls/s", Align::right},
                 {"hits/s", Align::right},
                 {"misses/s", Align::right}});
    for (const DeviceSample& device : sample.devices) {
        for (const RuntimeSample& runtime : device.runtimes) {
            table.add({shown(runtime.name) + (runtime.lost ? " (lost)" : ""), shown(device.name),
                       per_second(runtime.steps_per_second), rate(runtime.bytes_per_second), share(runtime.link_share),
                       share(runtime.stall_share), bytes(runtime.figures["held_bytes"]),
                       bytes(runtime.figures["share_bytes"]), bytes(runtime.figures["resident_bytes"]),
                       bytes(runtime.figures["ring_bytes"]), bytes(runtime.figures["unordered_bytes"]),
                       bytes(runtime.figures["protected_bytes"]), bytes(runtime.figures["reserved_bytes"]),
                       bytes(runtime.figures["guest_bytes"]), bytes(runtime.figures["given_up_bytes"]),
                       per_second(runtime.stalls_per_second), per_second(runtime.hits_per_second),
                       per_second(runtime.misses_per_second)});
        }
    }
    return table.text(terminal);
}

std::string set_table(const Terminal& terminal, const Sample& sample) {
    Table table({{"set"},
                 {"runtime"},
                 {"slots", Align::right},
                 {"members", Align::right},
                 {"uses/s", Align::right},
                 {"hits", Align::right},
                 {"evictions/s", Align::right}});
    bool any = false;
    for (const DeviceSample& device : sample.devices) {
        for (const RuntimeSample& runtime : device.runtimes) {
            for (const SetSample& set : runtime.sets) {
                any = true;
                table.add({shown(set.name), shown(runtime.name), count_text(set.figures["slots"]),
                           count_text(set.figures["members"]), per_second(set.uses_per_second), share(set.hit_share),
                           per_second(set.evictions_per_second)});
            }
        }
    }
    return any ? "\n" + table.text(terminal) : "";
}

}  // namespace

std::string top_view(const Terminal& terminal, const Sample& sample) {
    return head(terminal, sample) + "\n" + device_table(terminal, sample) + "\n" + runtime_table(terminal, sample) +
           set_table(terminal, sample) + link_note(sample);
}

}  // namespace stagehand::cli
