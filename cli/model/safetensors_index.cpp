// The grammar of the index as a state machine over JSON events: { "metadata": anything, "weight_map": { tensor: file }
// }
#include "safetensors_index.h"

#include <algorithm>
#include <map>
#include <numeric>

#include "checks.h"
#include "error.h"
#include "json_events.h"
#include "text.h"

namespace stagehand::cli::model {

namespace {

std::string entry_field(std::string_view tensor) { return "weight_map: " + in_quotes(tensor); }

// The reason why a shard may not have this name; empty if it may.
std::string_view shard_name_problem(std::string_view name) {
    if (name.empty()) return "is empty";
    if (name.find('\0') != std::string_view::npos) return "holds a NUL byte";
    if (name.front() == '/') return "is an absolute path";
    while (true) {
        const std::size_t slash = name.find('/');
        const std::string_view component = name.substr(0, slash);
        if (component == "..") return "leads out of the index's folder";
        if (component.empty() || component == ".") return "is not a plain path";
        if (slash == std::string_view::npos) return {};
        name.remove_prefix(slash + 1);
    }
}

class IndexEvents final : public JsonEvents {
public:
    explicit IndexEvents(ShardIndex& index) : index_(index) {}

    void start_object() override {
        switch (state_) {
            case State::before:
                state_ = State::top;
                return;
            case State::map_value:
                state_ = State::map;
                return;
            case State::skipped:
                enter_skipped();
                return;
            default:
                unexpected(JsonKind::object);
        }
    }

    void end_object() override {
        switch (state_) {
            case State::map:
                state_ = State::top;
                return;
            case State::skipped:
                leave_skipped();
                return;
            default:
                state_ = State::after;
        }
    }

    void start_array() override {
        if (state_ != State::skipped) unexpected(JsonKind::array);
        enter_skipped();
    }

    void end_array() override { leave_skipped(); }

    void key(std::string_view name) override {
        if (state_ == State::map) {
            tensor_.assign(name);
            if (name.size() > max_name_bytes)
                fail(entry_field(tensor_), "is longer than " + std::to_string(max_name_bytes) + " bytes");
            state_ = State::map_item;
        } else if (state_ == State::top && name == "weight_map") {
            if (saw_map_) fail("weight_map", "occurs twice");
            saw_map_ = true;
            state_ = State::map_value;
        } else if (state_ == State::top) {
            state_ = State::skipped;
            skipped_ = printable(name);
        }
    }

    void scalar(const JsonScalar& value) override {
        if (state_ == State::skipped) {
            if (skipped_depth_ == 0) state_ = State::top;
            return;
        }
        if (state_ != State::map_item || value.kind != JsonKind::string) unexpected(value.kind);
        index_.entries.push_back({index_.arena.copy(std::string_view(tensor_)), shard_number(value.text)});
        state_ = State::map;
    }

    bool saw_map() const { return saw_map_; }

private:
    enum class State { before, top, map_value, map, map_item, skipped, after };

    [[noreturn]] void fail(std::string_view field, std::string_view message) const {
        throw ModelError(index_.path, field, message);
    }

    [[noreturn]] void unexpected(JsonKind found) const {
        const std::string but = ", but is " + std::string(to_string(found));
        switch (state_) {
            case State::map_value:
                fail("weight_map", "must be an object of tensor and file names" + but);
            case State::map_item:
                fail(entry_field(tensor_), "must be a file's name" + but);
            default:
                fail("index", "must be a JSON object" + but);
        }
    }

    void enter_skipped() {
        if (++skipped_depth_ > max_skipped_depth)
            fail(skipped_, "is nested deeper than " + std::to_string(max_skipped_depth) + " levels");
    }

    void leave_skipped() {
        if (--skipped_depth_ == 0) state_ = State::top;
    }

    std::uint32_t shard_number(std::string_view name) {
        // Neighbours are mostly in the same shard.
        if (!index_.entries.empty()) {
            const std::uint32_t last = index_.entries.back().shard;
            if (index_.shards[last] == name) return last;
        }
        if (const auto found = numbers_.find(name); found != numbers_.end()) return found->second;
        if (const std::string_view problem = shard_name_problem(name); !problem.empty())
            fail(entry_field(tensor_), "the file name " + in_quotes(name) + " " + std::string(problem));
        const auto number = static_cast<std::uint32_t>(index_.shards.size());
        index_.shards.emplace_back(name);
        numbers_.emplace(std::string(name), number);
        return number;
    }

    ShardIndex& index_;
    State state_ = State::before;
    std::uint32_t skipped_depth_ = 0;
    bool saw_map_ = false;
    std::string skipped_;
    std::string tensor_;
    std::map<std::string, std::uint32_t, std::less<>> numbers_;
};

// Puts the shards in the order of their names, which is the order in which they were written.
void sort_shards(ShardIndex& index) {
    std::vector<std::uint32_t> order(index.shards.size());
    std::iota(order.begin(), order.end(), 0U);
    std::sort(order.begin(), order.end(),
              [&](std::uint32_t a, std::uint32_t b) { return index.shards[a] < index.shards[b]; });
    std::vector<std::uint32_t> place(order.size());
    std::vector<std::string> sorted(order.size());
    for (std::uint32_t i = 0; i < order.size(); ++i) {
        place[order[i]] = i;
        sorted[i] = std::move(index.shards[order[i]]);
    }
    index.shards = std::move(sorted);
    for (ShardIndex::Entry& entry : index.entries) entry.shard = place[entry.shard];
}

}  // namespace

ShardIndex read_shard_index(ByteSource& source, const ReadOptions& options) {
    if (source.size() == 0) throw ModelError(source.name(), "file", "is empty");
    if (source.size() > options.max_header_bytes) {
        throw ModelError(source.name(), "file",
                         "has " + std::to_string(source.size()) + " bytes, more than the limit on header bytes, " +
                             std::to_string(options.max_header_bytes));
    }
    ShardIndex index;
    index.path = source.name();
    IndexEvents events(index);
    read_json(source, 0, source.size(), "index", events);
    if (!events.saw_map()) throw ModelError(index.path, "weight_map", "is missing");
    if (index.entries.empty()) throw ModelError(index.path, "weight_map", "is empty");
    const auto name_of = [&](std::size_t i) { return index.entries[i].tensor; };
    find_equal_names(index.entries.size(), name_of, [&](std::size_t one, std::size_t two) {
        const std::string& a = index.shards[index.entries[one].shard];
        const std::string& b = index.shards[index.entries[two].shard];
        throw ModelError(index.path, entry_field(name_of(two)),
                         "occurs twice, for " + in_quotes(a) + " and for " + in_quotes(b));
    });
    sort_shards(index);
    return index;
}

void check_shard_index(const ShardIndex& index, const Model& model, std::size_t first_file, std::size_t first_tensor) {
    const auto listed = [&](std::size_t i) { return index.entries[i].tensor; };
    const auto held = [&](std::size_t i) { return model.tensors[first_tensor + i].name; };
    const std::vector<HashedIndex> a = order_by_name(index.entries.size(), listed);
    const std::vector<HashedIndex> b = order_by_name(model.tensors.size() - first_tensor, held);
    std::size_t i = 0;
    std::size_t j = 0;
    while (i < a.size() || j < b.size()) {
        // Which name comes first in the common order; 0 if both names are equal.
        int order = i == a.size() ? 1 : j == b.size() ? -1 : 0;
        if (order == 0) {
            order = a[i].hash != b[j].hash ? (a[i].hash < b[j].hash ? -1 : 1)
                                           : listed(a[i].index).compare(held(b[j].index));
        }
        if (order < 0) {
            const ShardIndex::Entry& entry = index.entries[a[i].index];
            throw ModelError(index.path, entry_field(entry.tensor),
                             "is not in " + in_quotes(index.shards[entry.shard]) + ", nor in any other shard");
        }
        const Tensor& tensor = model.tensors[first_tensor + b[j].index];
        if (order > 0) {
            throw ModelError(model.files[tensor.file].path, tensor_field(tensor.name),
                             "is not in the index " + in_quotes(index.path));
        }
        const ShardIndex::Entry& entry = index.entries[a[i].index];
        if (first_file + entry.shard != tensor.file) {
            throw ModelError(index.path, entry_field(entry.tensor),
                             "is not in " + in_quotes(index.shards[entry.shard]) + ", but in " +
                                 in_quotes(index.shards[tensor.file - first_file]));
        }
        ++i;
        ++j;
    }
}

}  // namespace stagehand::cli::model
