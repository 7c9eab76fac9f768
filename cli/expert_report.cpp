#include "expert_report.h"

#include <utility>

#include <fmt/format.h>

#include "model/quantity.h"
#include "table.h"
#include "units.h"

namespace stagehand::cli {

namespace {

double hit_rate(const ExpertCount& count) {
    return count.uses == 0 ? 0 : static_cast<double>(count.hits) / static_cast<double>(count.uses);
}

std::string hit_rate_text(const ExpertCount& count) {
    return share_text(static_cast<double>(count.hits), static_cast<double>(count.uses));
}

std::uint64_t missed_bytes(const ExpertTable& table, const ExpertFigures& figures) {
    std::uint64_t bytes = 0;
    for (std::size_t i = 0; i < table.layers.size(); ++i)
        bytes += (figures.layers[i].uses - figures.layers[i].hits) * table.layers[i].bytes;
    return figures.tokens == 0 ? 0 : bytes / figures.tokens;
}

std::uint64_t sum(const ExpertFigures& figures, std::uint64_t sh_set_info::*member) {
    std::uint64_t sum = 0;
    for (const sh_set_info& set : figures.sets) sum += set.*member;
    return sum;
}

Json experts_json(const ExpertTable& table, const ExpertFigures& figures) {
    const ExpertCount all = figures.all();
    Json layers = Json::array(), sets = Json::array();
    for (std::size_t i = 0; i < table.layers.size(); ++i) {
        const ExpertCount& count = figures.layers[i];
        layers.push_back({{"layer", table.layers[i].number},
                          {"uses", count.uses},
                          {"hits", count.hits},
                          {"hit_rate", hit_rate(count)}});
    }
    for (const sh_set_info& set : figures.sets)
        sets.push_back({{"members", set.members}, {"slots", set.slots}, {"slot_bytes", set.stride}});
    return {{"tokens", figures.tokens},
            {"token_ms", figures.ms_per_token()},
            {"slots", sum(figures, &sh_set_info::slots)},
            {"uses", all.uses},
            {"hits", all.hits},
            {"hit_rate", hit_rate(all)},
            {"evictions", sum(figures, &sh_set_info::evictions)},
            {"missed_bytes_per_token", missed_bytes(table, figures)},
            {"bytes_copied", figures.bytes_copied},
            {"sets", std::move(sets)},
            {"layers", std::move(layers)}};
}

// A remark on a measured figure: the planned one.
std::string beside(const ExpertReport& report, const std::string& planned, const std::string& remark) {
    if (!report.measured) return remark;
    return "planned: " + planned + (remark.empty() ? "" : "; " + remark);
}

}  // namespace

Json experts_json(const ExpertReport& report) {
    Json json = {{"experts", report.table.blocks.size()}, {"expert_bytes", report.table.bytes}};
    json.update(experts_json(report.table, report.measured ? *report.measured : report.planned));
    if (report.measured) json["planned"] = experts_json(report.table, report.planned);
    return json;
}

std::string experts_text(const ExpertReport& report, const Terminal& terminal) {
    const ExpertTable& table = report.table;
    const ExpertFigures& plan = report.planned;
    const ExpertFigures& shown = report.measured ? *report.measured : plan;
    Table layers = {{"layer", Align::left},
                    {"experts", Align::right},
                    {"each", Align::right},
                    {"uses", Align::right},
                    {"hits", Align::right},
                    {"hit rate", Align::right},
                    {report.measured ? "planned" : "", Align::right}};
    for (std::size_t i = 0; i < table.layers.size(); ++i) {
        const ExpertLayer& layer = table.layers[i];
        const ExpertCount& count = shown.layers[i];
        layers.add({count_text(layer.number), count_text(layer.experts), model::format_bytes(layer.bytes),
                    count_text(count.uses), count_text(count.hits), hit_rate_text(count),
                    report.measured ? hit_rate_text(plan.layers[i]) : ""});
    }
    const auto slots = [](const ExpertFigures& figures) { return count_text(sum(figures, &sh_set_info::slots)); };
    const auto missed = [&](const ExpertFigures& figures) { return model::format_bytes(missed_bytes(table, figures)); };
    const ExpertCount all = shown.all();
    Facts facts;
    facts.add("experts", model::format_bytes(table.bytes),
              fmt::format("{} in {}", counted(table.blocks.size(), "expert"), counted(table.layers.size(), "layer")));
    facts.add(
        "slots", slots(shown),
        beside(report, slots(plan), fmt::format("{} evictions", count_text(sum(shown, &sh_set_info::evictions)))));
    facts.add("expert hits", hit_rate_text(all),
              beside(report, hit_rate_text(plan.all()),
                     fmt::format("of {} in {}", counted(all.uses, "use"), counted(shown.tokens, "token"))));
    facts.add("missed a token", missed(shown), beside(report, missed(plan), "bytes of experts"));
    facts.add("token time", time_text(shown.ms_per_token()),
              beside(report, time_text(plan.ms_per_token()), report.measured ? "" : "in the simulation"));
    return layers.text(terminal) + "\n" + facts.text(terminal);
}

}  // namespace stagehand::cli
