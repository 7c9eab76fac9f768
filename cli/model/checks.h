// The checks of every reader after it has read a header: names are unique, and no two tensors share bytes.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <string_view>
#include <vector>

#include "model.h"

namespace stagehand::cli::model {

struct HashedIndex {
    std::uint64_t hash;
    std::uint64_t index;
};

// The numbers 0 to count - 1, sorted by the hash of their names, then by name, then by number, so that equal names are
// neighbours. Comparing hashes is several times faster than comparing names. Unlike a hash table, a sort does not take
// quadratic time on names that were made to collide.
template <typename NameOf>
std::vector<HashedIndex> order_by_name(std::size_t count, NameOf name_of) {
    std::vector<HashedIndex> order(count);
    for (std::size_t i = 0; i < count; ++i) order[i] = {std::hash<std::string_view>{}(name_of(i)), i};
    std::sort(order.begin(), order.end(), [](const HashedIndex& a, const HashedIndex& b) {
        return a.hash != b.hash ? a.hash < b.hash : a.index < b.index;
    });
    for (auto first = order.begin(); first != order.end();) {
        const auto same_hash = [&](const HashedIndex& entry) { return entry.hash == first->hash; };
        const auto same_name = [&](const HashedIndex& entry) { return name_of(entry.index) == name_of(first->index); };
        const auto last = std::find_if_not(first + 1, order.end(), same_hash);
        if (!std::all_of(first + 1, last, same_name)) {
            std::sort(first, last, [&](const HashedIndex& a, const HashedIndex& b) {
                const int names = name_of(a.index).compare(name_of(b.index));
                return names != 0 ? names < 0 : a.index < b.index;
            });
        }
        first = last;
    }
    return order;
}

// Calls `found(first, second)` with the numbers of the first two equal names that it finds, first < second. Does
// nothing if all names differ.
template <typename NameOf, typename Found>
void find_equal_names(std::size_t count, NameOf name_of, Found found) {
    const std::vector<HashedIndex> order = order_by_name(count, name_of);
    for (std::size_t i = 1; i < count; ++i) {
        if (order[i - 1].hash == order[i].hash && name_of(order[i - 1].index) == name_of(order[i].index)) {
            found(static_cast<std::size_t>(order[i - 1].index), static_cast<std::size_t>(order[i].index));
            return;
        }
    }
}

// The field for messages about a member of a tensor: "tensor 'x': shape".
std::string tensor_field(std::string_view name, std::string_view what = {});

// Throws if two of the tensors from `first` on have the same name.
void check_names(const Model& model, std::size_t first = 0);

// Throws if two of the tensors from `first` on, which are all of one file, share bytes. Without `gaps_allowed`, also
// throws if there are bytes before or between them that belong to no tensor.
void check_layout(const Model& model, std::size_t first, bool gaps_allowed);

// Adds the bytes of the tensors from `first` on to total_bytes. Throws if the sum exceeds Model::max_total_bytes.
void add_bytes(Model& model, std::size_t first);

}  // namespace stagehand::cli::model
