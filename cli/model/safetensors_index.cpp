#include "safetensors_index.h"

#include <algorithm>
#include <filesystem>
#include <map>
#include <numeric>
#include <utility>

#include "checks.h"
#include "error.h"
#include "json_schema.h"
#include "safetensors.h"
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

// Takes the entries of an index: { "metadata": anything, "weight_map": { tensor: file } }
class IndexReader {
public:
    explicit IndexReader(ShardIndex& index) : index_(index) {}
    IndexReader(const IndexReader&) = delete;
    IndexReader& operator=(const IndexReader&) = delete;

    const JsonSchema& schema() const { return top_; }
    bool saw_map() const { return saw_map_; }

private:
    [[noreturn]] void fail(std::string_view field, std::string_view message) const {
        throw ModelError(index_.path, field, message);
    }

    const JsonSchema& member(std::string_view name) {
        if (name != "weight_map") {
            other_name_ = printable(name);
            return other_;
        }
        if (std::exchange(saw_map_, true)) fail("weight_map", "occurs twice");
        return map_;
    }
    const JsonSchema& entry(std::string_view tensor) {
        tensor_.assign(tensor);
        if (tensor.size() > max_name_bytes)
            fail(entry_field(tensor_), "is longer than " + std::to_string(max_name_bytes) + " bytes");
        return file_;
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
    bool saw_map_ = false;
    std::string other_name_, tensor_;
    std::map<std::string, std::uint32_t, std::less<>> numbers_;

    const JsonSchema other_{.field = [this] { return other_name_; }};
    const JsonSchema file_{
        .kind = JsonKind::string,
        .wanted = "be a file's name",
        .field = [this] { return entry_field(tensor_); },
        .text =
            [this](std::string_view file) {
                index_.entries.push_back({index_.arena.copy(std::string_view(tensor_)), shard_number(file)});
            }};
    const JsonSchema map_{.kind = JsonKind::object,
                          .wanted = "be an object of tensor and file names",
                          .field = [] { return std::string("weight_map"); },
                          .member = [this](std::string_view name) -> const JsonSchema& { return entry(name); }};
    const JsonSchema top_{.kind = JsonKind::object,
                          .wanted = "be a JSON object",
                          .field = [] { return std::string("index"); },
                          .member = [this](std::string_view name) -> const JsonSchema& { return member(name); }};
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
    IndexReader reader(index);
    read_json(source, 0, source.size(), "index", reader.schema());
    if (!reader.saw_map()) throw ModelError(index.path, "weight_map", "is missing");
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

ShardIndex read_shard_index(const std::string& path, const ReadOptions& options) {
    FileSource source(path);
    return read_shard_index(source, options);
}

void read_shards(const ShardIndex& index, const ReadOptions& options, Model& model) {
    const std::filesystem::path folder = std::filesystem::path(index.path).parent_path();
    const std::size_t first_file = model.files.size();
    const std::size_t first_tensor = model.tensors.size();
    std::map<std::pair<std::uint64_t, std::uint64_t>, std::string> seen;
    for (const std::string& shard : index.shards) {
        FileSource file((folder / shard).string());
        const auto [other, is_new] = seen.emplace(std::pair(file.stamp().device, file.stamp().inode), shard);
        if (!is_new) {
            throw ModelError(index.path, "weight_map",
                             "names one file twice, as " + in_quotes(other->second) + " and as " + in_quotes(shard));
        }
        read_safetensors(file, options, model);
    }
    check_names(model, first_tensor);
    check_shard_index(index, model, first_file, first_tensor);
}

}  // namespace stagehand::cli::model
