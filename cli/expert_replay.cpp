#include "expert_replay.h"

#include <algorithm>
#include <span>

#include <fmt/format.h>

#include "library.h"
#include "model/quantity.h"

namespace stagehand::cli {

ExpertCount ExpertFigures::all() const {
    ExpertCount all;
    for (const ExpertCount& layer : layers) all.uses += layer.uses, all.hits += layer.hits;
    return all;
}

ExpertReplay::ExpertReplay(StreamingSession& session, const ExpertTable& table, const ExpertTrace& trace)
    : session_(session), table_(table), trace_(trace), counts_(table.layers.size()) {
    std::size_t use = 0;
    for (std::size_t i = 0; i < table.layers.size(); ++i) {
        const ExpertLayer& layer = table.layers[i];
        const auto alike = std::ranges::find_if(sets_, [&](const Set& set) {
            const ExpertLayer& first = table.layers[set.layers.front()];
            return first.bytes == layer.bytes && first.experts == layer.experts;
        });
        set_of_.push_back(static_cast<std::size_t>(alike - sets_.begin()));
        if (alike == sets_.end()) sets_.emplace_back();
        Set& set = sets_[set_of_.back()];
        group_of_.push_back(set.layers.size());
        set.layers.push_back(i);
        use = std::max(use, session.last_use(layer.name).value_or(use));
        use_of_.push_back(use);
    }
    for (Set& set : sets_) create(set);
}

void ExpertReplay::create(Set& set) {
    std::vector<model::Block> experts;
    for (const std::size_t i : set.layers) {
        const ExpertLayer& layer = table_.layers[i];
        const auto blocks = std::span(table_.blocks).subspan(layer.first, layer.experts);
        experts.insert(experts.end(), blocks.begin(), blocks.end());
    }
    const std::string name = fmt::format("experts of {}", model::format_bytes(experts.front().bytes));
    sh_set_options options = SH_SET_OPTIONS_INIT;
    options.group_members = table_.layers[set.layers.front()].experts;
    options.name = name.c_str();
    for (const ExpertCall& call : trace_.calls)
        if (&sets_[set_of_[call.layer]] == &set)
            options.call_members = std::max<std::uint64_t>(options.call_members, call.experts.size());
    const BlockDescs descs(experts, session_.contents());
    set.blocks.resize(descs.size());
    check(sh_set_create(session_.runtime(), &options, descs.data(), descs.size(), set.blocks.data(), &set.handle),
          fmt::format("registering {}", name));
}

sh_set_info ExpertReplay::info(const Set& set) const {
    auto info = sh_sized<sh_set_info>();
    check(sh_set_get_info(session_.runtime(), set.handle, &info), "experts");
    return info;
}

void ExpertReplay::visit(std::size_t token, std::size_t use, const Check& check) {
    if (use == 0) next_ = trace_.tokens[token];
    for (; next_ < trace_.end_of(token) && use_of_[trace_.calls[next_].layer] <= use; ++next_)
        call(trace_.calls[next_], check);
}

void ExpertReplay::call(const ExpertCall& call, const Check& each) {
    const ExpertLayer& layer = table_.layers[call.layer];
    const Set& set = sets_[set_of_[call.layer]];
    const std::size_t first = group_of_[call.layer] * layer.experts;
    std::vector<std::uint32_t> members, slots(call.experts.size());
    for (const std::uint32_t expert : call.experts) members.push_back(static_cast<std::uint32_t>(first + expert));
    const sh_stream stream = session_.compute_stream().handle();
    const std::string doing = fmt::format("experts of {}", layer.name);
    const sh_set_info before = info(set);
    auto pool = sh_sized<sh_view>();
    check(sh_acquire_members(session_.runtime(), set.handle, members.data(), members.size(), stream, 0, &pool,
                             slots.data()),
          doing);
    const sh_set_info after = info(set);
    counts_[call.layer].uses += after.uses - before.uses;
    counts_[call.layer].hits += after.hits - before.hits;
    if (each)
        for (std::size_t i = 0; i < members.size(); ++i) each(layer.first + call.experts[i], set.blocks[members[i]]);
    check(sh_release_members(session_.runtime(), set.handle, members.data(), members.size(), stream), doing);
}

ExpertFigures ExpertReplay::figures() const {
    ExpertFigures figures;
    figures.layers = counts_;
    for (const Set& set : sets_) figures.sets.push_back(info(set));
    return figures;
}

ExpertFigures plan_experts(const PlanTarget& target, const ModelOptions& options, const ExpertTable& table,
                           const ExpertTrace& trace) {
    const Device device = open_simulation(target, table.rest.block_bytes + table.bytes, options);
    const ModelFiles files(table.rest.model);
    StreamingSession session(device.get(), table.rest, files, options.order, options.compute_ms);
    ExpertReplay replay(session, table, trace);
    session.plan();
    session.step([](std::size_t, const StepUse&, sh_block) {});
    check(sh_runtime_synchronize(session.runtime()), "loading");
    const std::uint64_t copied = runtime_stats(session.runtime()).bytes_to_device;
    const std::uint64_t begin = device_clock_ns(device.get());
    for (std::size_t token = 0; token < trace.tokens.size(); ++token)
        session.step([&](std::size_t use, const StepUse&, sh_block) { replay.visit(token, use); });
    check(sh_runtime_synchronize(session.runtime()), "the simulation");
    ExpertFigures figures = replay.figures();
    figures.tokens = trace.tokens.size();
    figures.ms = static_cast<double>(device_clock_ns(device.get()) - begin) / 1e6;
    figures.bytes_copied = runtime_stats(session.runtime()).bytes_to_device - copied;
    return figures;
}

}  // namespace stagehand::cli
