// Finds layers by the first number in a dotted name. Other tensors are grouped by the component below the prefix that
// they share with layers.
#include "layer_names.h"

#include <algorithm>
#include <numeric>
#include <string>
#include <unordered_set>

#include "checks.h"
#include "use_order.h"

namespace stagehand::cli::model {

namespace {

// Components deeper than this are ignored when tensors outside layers are grouped.
constexpr std::size_t max_depth = 32;

// Computes the hashes of all dotted prefixes of a name in one pass. A collision would only make two prefixes count as
// one, and the name of a group longer or shorter.
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

// The prefix that a layer shares with the other layers: "model.layers" for the layer "model.layers.7".
std::string_view path_of(std::string_view layer) { return layer.substr(0, layer.rfind('.')); }

// The prefixes above a family of layers: "model" if there is a family "model.layers". If "a.b" is such a prefix, "a" is
// one too.
class Ancestors {
public:
    void add_above(std::string_view family) {
        PrefixHash hash;
        std::size_t depth = 0;
        for (const char c : family) {
            if (c == '.') {
                hashes_.push_back(hash.value());
                if (++depth == max_depth) return;
            }
            hash.add(c);
        }
    }

    void finish() {
        std::sort(hashes_.begin(), hashes_.end());
        hashes_.erase(std::unique(hashes_.begin(), hashes_.end()), hashes_.end());
    }

    // The group of a tensor outside layers: the longest ancestor of its name, and one component more.
    std::string_view group_of(std::string_view name) const {
        PrefixHash hash;
        for (std::size_t i = 0; i < name.size(); ++i) {
            if (name[i] == '.' && !std::binary_search(hashes_.begin(), hashes_.end(), hash.value()))
                return name.substr(0, i);
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
        if (const std::string_view family = path_of(names.back()); family != last_family) {
            ancestors.add_above(family);
            last_family = family;
        }
    }
    ancestors.finish();
    for (std::size_t i = 0; i < names.size(); ++i)
        if (names[i].empty()) names[i] = ancestors.group_of(model.tensors[i].name);
    return names;
}

// The part of the model that the last number in the name counts: "layers.7.mlp.experts.3" of
// "layers.7.mlp.experts.3.w1.weight". The whole name if it has no number before its last component.
std::string_view counted_part(std::string_view name) {
    std::string_view part = name;
    std::size_t begin = 0;
    for (std::size_t end = name.find('.'); end != std::string_view::npos; end = name.find('.', begin)) {
        if (is_number(name.substr(begin, end - begin))) part = name.substr(0, end);
        begin = end + 1;
    }
    return part;
}

bool matches_any(const std::vector<std::string>& patterns, std::string_view name) {
    for (std::size_t end = 0; end != std::string_view::npos;) {
        end = name.find('.', end == 0 ? 0 : end + 1);
        for (const std::string& pattern : patterns)
            if (matches_glob(pattern, name.substr(0, end))) return true;
    }
    return false;
}

// Gives the tensors that match groups of their own. Returns which tensors these are.
std::vector<bool> take_out_unordered(const Model& model, const std::vector<std::string>& patterns,
                                     std::vector<std::string_view>& names) {
    std::vector<bool> matched(names.size(), false);
    if (patterns.empty()) return matched;
    std::unordered_set<std::string_view> ordered;
    for (std::size_t i = 0; i < names.size(); ++i) {
        matched[i] = matches_any(patterns, model.tensors[i].name);
        if (!matched[i]) ordered.insert(names[i]);
    }
    for (std::size_t i = 0; i < names.size(); ++i) {
        if (matched[i]) {
            const std::string_view part = counted_part(model.tensors[i].name);
            names[i] = ordered.count(part) == 0 ? part : model.tensors[i].name;
        }
    }
    return matched;
}

// The numbers of the groups in the order of use.
std::vector<std::uint32_t> order_of_use(const std::vector<std::string_view>& groups) {
    std::vector<std::string> keys;
    keys.reserve(groups.size());
    for (const std::string_view name : groups) keys.push_back(use_order_key(name));
    std::vector<std::uint32_t> order(groups.size());
    std::iota(order.begin(), order.end(), 0U);
    // A merge sort, because it is fast on input that is nearly sorted.
    std::stable_sort(order.begin(), order.end(), [&](std::uint32_t a, std::uint32_t b) {
        const int by_use = keys[a].compare(keys[b]);
        return by_use != 0 ? by_use < 0 : groups[a] < groups[b];
    });
    return order;
}

}  // namespace

std::string family_of(std::string_view name) {
    std::string family(name);
    std::erase_if(family, [](char character) { return character >= '0' && character <= '9'; });
    return family;
}

std::string_view layer_of(std::string_view tensor_name) {
    std::size_t begin = tensor_name.find('.');
    while (begin != std::string_view::npos) {
        const std::size_t end = tensor_name.find('.', begin + 1);
        if (end == std::string_view::npos) break;
        if (is_number(tensor_name.substr(begin + 1, end - begin - 1))) return tensor_name.substr(0, end);
        begin = end;
    }
    return {};
}

bool matches_glob(std::string_view pattern, std::string_view text) {
    constexpr std::size_t none = std::string_view::npos;
    std::size_t p = 0;
    std::size_t t = 0;
    // After a mismatch the last star takes one character more.
    std::size_t star = none;
    std::size_t star_text = 0;
    while (t < text.size()) {
        if (p < pattern.size() && pattern[p] == '*') {
            star = p++;
            star_text = t;
        } else if (p < pattern.size() && (pattern[p] == '?' || pattern[p] == text[t])) {
            ++p;
            ++t;
        } else if (star != none) {
            p = star + 1;
            t = ++star_text;
        } else {
            return false;
        }
    }
    return pattern.find_first_not_of('*', p) == none;
}

bool looks_like_expert(std::string_view tensor_name) {
    while (!tensor_name.empty()) {
        const std::size_t dot = tensor_name.find('.');
        const std::string_view component = tensor_name.substr(0, dot);
        if (component == "experts" || component.ends_with("_exps")) return true;
        tensor_name = dot == std::string_view::npos ? std::string_view() : tensor_name.substr(dot + 1);
    }
    return false;
}

TensorGroups group_tensors(const Model& model, const std::vector<std::string>& unordered) {
    std::vector<std::string_view> names = group_names(model);
    const std::vector<bool> matched = take_out_unordered(model, unordered, names);
    // Tensors of one group mostly follow each other, so only the first tensor of each run is looked up.
    std::vector<std::size_t> runs;
    for (std::size_t i = 0; i < names.size(); ++i)
        if (i == 0 || names[i] != names[i - 1]) runs.push_back(i);
    const auto run_name = [&](std::size_t run) { return names[runs[run]]; };
    // For each run, the first run of the same name. These first runs give the groups in the order of the header, which
    // is often close to the order of use.
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
    result.unordered.resize(groups.size());
    result.group_of.resize(names.size());
    for (std::size_t run = 0; run < runs.size(); ++run) {
        const std::size_t end = run + 1 < runs.size() ? runs[run + 1] : names.size();
        for (std::size_t i = runs[run]; i < end; ++i) {
            result.group_of[i] = place[group_of_run[run]];
            result.unordered[result.group_of[i]] = matched[i];
        }
    }
    return result;
}

}  // namespace stagehand::cli::model
