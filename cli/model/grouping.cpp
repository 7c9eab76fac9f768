// Turns groups of tensors into blocks: joins, splits and lays out.
#include "grouping.h"

#include <algorithm>
#include <stdexcept>
#include <string_view>

#include "error.h"
#include "layer_names.h"

namespace stagehand::cli::model {

namespace {

std::uint64_t round_up(std::uint64_t value, std::uint64_t multiple) {
    return (value + multiple - 1) / multiple * multiple;
}

std::uint64_t divide_up(std::uint64_t value, std::uint64_t by) { return value / by + (value % by != 0 ? 1 : 0); }

// A range of the tensors in the order of use that becomes one block, or several.
struct Group {
    std::string_view first_name;
    std::string_view last_name;
    std::size_t begin = 0;
    std::size_t end = 0;
    std::uint64_t bytes = 0;  // laid out in one block
    bool unordered = false;

    std::string name() const {
        return first_name == last_name ? std::string(first_name)
                                       : std::string(first_name) + " to " + std::string(last_name);
    }
};

// The tensors that have bytes, group by group in the order of use; in a group, in the order of the files.
std::vector<const Tensor*> tensors_in_order(const Model& model, const TensorGroups& groups) {
    struct Place {
        std::uint32_t group;
        std::uint32_t file;
        std::uint64_t offset;
        const Tensor* tensor;
    };
    std::vector<Place> places;
    places.reserve(model.tensors.size());
    for (std::size_t i = 0; i < model.tensors.size(); ++i) {
        const Tensor& tensor = model.tensors[i];
        if (tensor.bytes > 0) places.push_back({groups.group_of[i], tensor.file, tensor.offset, &tensor});
    }
    std::sort(places.begin(), places.end(), [](const Place& a, const Place& b) {
        if (a.group != b.group) return a.group < b.group;
        return a.file != b.file ? a.file < b.file : a.offset < b.offset;
    });
    std::vector<const Tensor*> order;
    order.reserve(places.size());
    for (const Place& place : places) order.push_back(place.tensor);
    return order;
}

std::vector<Group> make_groups(const Model& model, const TensorGroups& groups,
                               const std::vector<const Tensor*>& order) {
    std::vector<Group> result;
    std::uint32_t last = 0;
    for (std::size_t i = 0; i < order.size(); ++i) {
        const std::uint32_t number = groups.group_of[static_cast<std::size_t>(order[i] - model.tensors.data())];
        if (result.empty() || number != last) {
            const std::string_view name = groups.names[number];
            result.push_back({name, name, i, i, 0, groups.unordered[number]});
            last = number;
        }
        Group& group = result.back();
        group.end = i + 1;
        group.bytes = round_up(group.bytes, tensor_alignment) + order[i]->bytes;
    }
    return result;
}

// Joins neighbours as long as the result is below an even share, so that about `most` groups are left.
std::vector<Group> join_groups(const std::vector<Group>& groups, std::size_t most, std::uint64_t max_bytes) {
    std::uint64_t total = 0;
    for (const Group& group : groups) total += round_up(group.bytes, tensor_alignment);
    const std::uint64_t share = std::min(max_bytes, divide_up(total, most));
    std::vector<Group> joined;
    for (const Group& group : groups) {
        if (!joined.empty()) {
            Group& last = joined.back();
            const std::uint64_t bytes = round_up(last.bytes, tensor_alignment) + group.bytes;
            // Two neighbours that are not joined exceed the share together, so at most 2 * most groups are left, beside
            // the unordered groups.
            if (bytes <= share && !last.unordered && !group.unordered) {
                last.last_name = group.last_name;
                last.end = group.end;
                last.bytes = bytes;
                continue;
            }
        }
        joined.push_back(group);
    }
    return joined;
}

// Fills blocks with tensors one after another.
class BlockFiller {
public:
    BlockFiller(std::vector<Block>& blocks, std::uint64_t max_bytes) : blocks_(blocks), max_bytes_(max_bytes) {}

    // Makes the blocks of a group from its tensors.
    void fill(const Group& group, const std::vector<const Tensor*>& order) {
        const std::size_t first = blocks_.size();
        const std::uint64_t target = divide_up(group.bytes, divide_up(group.bytes, max_bytes_));
        for (std::size_t i = group.begin; i < group.end; ++i) place(*order[i], target);
        close();
        const std::size_t parts = blocks_.size() - first;
        const std::string name = group.name();
        for (std::size_t i = 0; i < parts; ++i) {
            blocks_[first + i].unordered = group.unordered;
            blocks_[first + i].name =
                parts == 1 ? name : name + " [" + std::to_string(i + 1) + "/" + std::to_string(parts) + "]";
        }
    }

private:
    void place(const Tensor& tensor, std::uint64_t target) {
        const std::uint64_t at = round_up(block_.bytes, tensor_alignment);
        const bool fits = tensor.bytes <= max_bytes_ && at <= max_bytes_ - tensor.bytes;
        // Of the ends before and after this tensor, the block ends at the one that is nearer to the target.
        if (!fits || (block_.bytes > 0 && at + tensor.bytes / 2 > target)) close();
        if (tensor.bytes <= max_bytes_) {
            append(tensor, 0, tensor.bytes);
            return;
        }
        const std::uint64_t parts = divide_up(tensor.bytes, max_bytes_);
        const std::uint64_t part = round_up(divide_up(tensor.bytes, parts), split_bytes);
        std::uint64_t done = 0;
        for (; tensor.bytes - done > part; done += part) {
            append(tensor, done, part);
            close();
        }
        append(tensor, done, tensor.bytes - done);  // the next tensors may share this block
    }

    void append(const Tensor& tensor, std::uint64_t begin, std::uint64_t bytes) {
        const std::uint64_t at = round_up(block_.bytes, tensor_alignment);
        const std::uint64_t offset = tensor.offset + begin;
        block_.bytes = at + bytes;
        if (tensor.packed_bytes != 0) {
            block_.segments.push_back(
                {tensor.file, tensor.offset, bytes, at, tensor.packed_bytes, begin, tensor.bytes});
            return;
        }
        if (!block_.segments.empty()) {
            Segment& last = block_.segments.back();
            if (last.packed_bytes == 0 && last.file == tensor.file && last.offset + last.bytes == offset &&
                last.block_offset + last.bytes == at) {
                last.bytes += bytes;
                return;
            }
        }
        block_.segments.push_back({tensor.file, offset, bytes, at, 0, 0, 0});
    }

    void close() {
        if (block_.bytes > 0) {
            block_.segments.shrink_to_fit();
            blocks_.push_back(std::move(block_));
            block_ = Block();
        }
    }

    std::vector<Block>& blocks_;
    std::uint64_t max_bytes_;
    Block block_;
};

void check_count(const Model& model, const std::vector<Group>& groups, std::uint64_t max_bytes) {
    std::uint64_t count = 0;
    for (const Group& group : groups) {
        count += divide_up(group.bytes, max_bytes);
        if (count > max_blocks) {
            throw ModelError(model.files.front().path, "size",
                             "the model would be split into more than " + std::to_string(max_blocks) +
                                 " blocks of at most " + std::to_string(max_bytes) + " bytes: allow larger ones");
        }
    }
}

}  // namespace

std::vector<Block> group_blocks(const Model& model, const GroupingOptions& options) {
    if (options.max_block_bytes < split_bytes)
        throw std::invalid_argument("the largest block must have at least " + std::to_string(split_bytes) + " bytes");
    const std::uint64_t max_bytes = options.max_block_bytes / split_bytes * split_bytes;
    const TensorGroups names = group_tensors(model, options.unordered);
    const std::vector<const Tensor*> order = tensors_in_order(model, names);
    std::vector<Group> groups = make_groups(model, names, order);
    if (groups.size() > options.max_groups)
        groups = join_groups(groups, std::max<std::size_t>(options.max_groups, 1), max_bytes);
    check_count(model, groups, max_bytes);
    std::vector<Block> blocks;
    BlockFiller filler(blocks, max_bytes);
    for (const Group& group : groups) filler.fill(group, order);
    return blocks;
}

std::uint64_t max_block_for_budget(std::uint64_t budget_bytes) {
    constexpr std::uint64_t sensible = std::uint64_t{64} << 10;
    const std::uint64_t wanted = std::max(budget_bytes / 4, std::min(sensible, budget_bytes));
    return std::max(wanted / split_bytes * split_bytes, split_bytes);
}

}  // namespace stagehand::cli::model
