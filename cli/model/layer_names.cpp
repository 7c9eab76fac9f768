// Layers by the first number in a dotted name; the rest by the component below what they share with layers.
#include "layer_names.h"

#include <algorithm>
#include <numeric>
#include <string>

#include "checks.h"
#include "use_order.h"

namespace stagehand::cli::model {

namespace {

// Deeper components than this play no part in grouping what is outside layers.
constexpr std::size_t max_depth = 32;

// A hash of all dotted prefixes of a name in one pass over it. A collision would only make two prefixes count
// as one, and a group's name longer or shorter.
class PrefixHash {
public:
    void add(char c) { value_ = (value_ ^ static_cast<unsigned char>(c)) * 0x100000001b3; }
    std::uint64_t value() const { return value_; }

private:
    std::uint64_t value_ = 0xcbf29ce484222325;
};

bool is_number(std::string_view component) {
    return !component.empty() &&
           std::all_of(component.begin(), component.end(), [](char c) { return c >= '0' && c <= '9'; });
}

// What holds the layers: "model.layers" of the layer "model.layers.7".
std::string_view family_of(std::string_view layer) { return layer.substr(0, layer.rfind('.')); }

// The prefixes that are above some family of layers: "model" when there is a "model.layers". If "a.b" is one,
// so is "a".
class Ancestors {
public:
    void add_above(std::string_view family) {
        PrefixHash hash;
        std::size_t depth = 0;
        for (const char c : family) {
            if (c == '.') {
                hashes_.push_back(hash.value());
                if (++depth == max_depth) {
                    return;
                }
            }
            hash.add(c);
        }
    }

    void finish() {
        std::sort(hashes_.begin(), hashes_.end());
        hashes_.erase(std::unique(hashes_.begin(), hashes_.end()), hashes_.end());
    }

    // The group of a tensor outside layers: the longest ancestor of its name and one component more.
    std::string_view group_of(std::string_view name) const {
        PrefixHash hash;
        for (std::size_t i = 0; i < name.size(); ++i) {
            if (name[i] == '.' && !std::binary_search(hashes_.begin(), hashes_.end(), hash.value())) {
                return name.substr(0, i);
            }
            hash.add(name[i]);
        }
        return name;
    }

private:
    std::vector<std::uint64_t> hashes_;
};

// For each tensor the name of its group.
std::vector<std::string_view> group_names(const Model& model) {
    std::vector<std::string_view> names;
    names.reserve(model.tensors.size());
    Ancestors ancestors;
    std::string_view last_family;
    for (const Tensor& tensor : model.tensors) {
        names.push_back(layer_of(tensor.name));
        if (const std::string_view family = family_of(names.back()); family != last_family) {
            ancestors.add_above(family);
            last_family = family;
        }
    }
    ancestors.finish();
    for (std::size_t i = 0; i < names.size(); ++i) {
        if (names[i].empty()) {
            names[i] = ancestors.group_of(model.tensors[i].name);
        }
    }
    return names;
}

// The numbers of the groups in the order of use.
std::vector<std::uint32_t> order_of_use(const std::vector<std::string_view>& groups) {
    std::vector<std::string> keys;
    keys.reserve(groups.size());
    for (const std::string_view name : groups) {
        keys.push_back(use_order_key(name));
    }
    std::vector<std::uint32_t> order(groups.size());
    std::iota(order.begin(), order.end(), 0U);
    // By merging, which is quick on what is nearly sorted.
    std::stable_sort(order.begin(), order.end(), [&](std::uint32_t a, std::uint32_t b) {
        const int by_use = keys[a].compare(keys[b]);
        return by_use != 0 ? by_use < 0 : groups[a] < groups[b];
    });
    return order;
}

}  // namespace

std::string_view layer_of(std::string_view tensor_name) {
    std::size_t begin = tensor_name.find('.');
    while (begin != std::string_view::npos) {
        const std::size_t end = tensor_name.find('.', begin + 1);
        if (end == std::string_view::npos) {
            break;
        }
        if (is_number(tensor_name.substr(begin + 1, end - begin - 1))) {
            return tensor_name.substr(0, end);
        }
        begin = end;
    }
    return {};
}

TensorGroups group_tensors(const Model& model) {
    const std::vector<std::string_view> names = group_names(model);
    // Tensors of one group mostly follow each other: only the first of each run is looked up.
    std::vector<std::size_t> runs;
    for (std::size_t i = 0; i < names.size(); ++i) {
        if (i == 0 || names[i] != names[i - 1]) {
            runs.push_back(i);
        }
    }
    const auto run_name = [&](std::size_t run) { return names[runs[run]]; };
    // Each run's first run of the same name, and from these the groups in the order of the header, which is
    // often close to the order of use.
    std::vector<std::size_t> first_run(runs.size());
    const std::vector<HashedIndex> by_name = order_by_name(runs.size(), run_name);
    for (std::size_t i = 0; i < by_name.size(); ++i) {
        const std::size_t run = by_name[i].index;
        const bool same = i > 0 && run_name(by_name[i - 1].index) == run_name(run);
        first_run[run] = same ? first_run[by_name[i - 1].index] : run;
    }
    std::vector<std::string_view> groups;
    std::vector<std::uint32_t> group_of_run(runs.size());
    for (std::size_t run = 0; run < runs.size(); ++run) {
        if (first_run[run] == run) {
            group_of_run[run] = static_cast<std::uint32_t>(groups.size());
            groups.push_back(run_name(run));
        } else {
            group_of_run[run] = group_of_run[first_run[run]];
        }
    }
    const std::vector<std::uint32_t> order = order_of_use(groups);

    TensorGroups result;
    std::vector<std::uint32_t> place(groups.size());
    for (std::uint32_t i = 0; i < order.size(); ++i) {
        place[order[i]] = i;
        result.names.push_back(groups[order[i]]);
    }
    result.group_of.resize(names.size());
    for (std::size_t run = 0; run < runs.size(); ++run) {
        const std::size_t end = run + 1 < runs.size() ? runs[run + 1] : names.size();
        for (std::size_t i = runs[run]; i < end; ++i) {
            result.group_of[i] = place[group_of_run[run]];
        }
    }
    return result;
}

}  // namespace stagehand::cli::model
