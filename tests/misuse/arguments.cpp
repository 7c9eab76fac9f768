#include "arguments.h"

#include <algorithm>
#include <cstring>
#include <fstream>
#include <sstream>

namespace stagehand::test {

const Interface& interface() {
    static const Interface read = [] {
        Interface found;
        std::ifstream file(STAGEHAND_ABI_SNAPSHOT);
        for (std::string line; std::getline(file, line);) {
            std::istringstream words(line);
            std::string kind, name;
            words >> kind >> name;
            if (kind == "constant") {
                int64_t value = 0;
                words >> value;
                found.constants[name] = static_cast<uint64_t>(value);
            } else if (kind == "struct") {
                words >> found.structs[name].size;
            } else if (kind == "field") {
                const size_t dot = name.find('.');
                Field& field = found.structs[name.substr(0, dot)].fields[name.substr(dot + 1)];
                words >> field.offset >> field.size >> std::ws;
                std::getline(words, field.type);
            } else if (kind == "function") {
                found.functions.push_back(name);
            }
        }
        return found;
    }();
    return read;
}

bool Arguments::are_unchanged() const {
    return memory_ == before_ &&
           std::ranges::all_of(outputs_, [](const auto& output) { return *output.first == output.second; });
}

std::string Arguments::name_of(const std::type_info& type) {
    const std::string name = type.name();  // behind its length
    return name.substr(name.find_first_not_of("0123456789"));
}

uint64_t Arguments::number(const Json& value) const {
    if (value.is_null()) return 0;
    if (value.is_string()) return world_.at(value.get<std::string>());
    return value.is_number_unsigned() ? value.get<uint64_t>() : static_cast<uint64_t>(value.get<int64_t>());
}

const char* Arguments::text(const Json& value) {
    const std::string text = value.get<std::string>();
    return static_cast<const char*>(keep({text.c_str(), text.c_str() + text.size() + 1}));
}

void* Arguments::output(const std::string& name) {
    uint64_t& value = world_.try_emplace(name, 77).first->second;
    outputs_.emplace_back(&value, value);
    return &value;
}

void* Arguments::numbers(const Json& list, size_t bytes) {
    std::vector<char> all;
    for (const Json& value : list) {
        const uint64_t one = number(value);
        all.insert(all.end(), reinterpret_cast<const char*>(&one), reinterpret_cast<const char*>(&one) + bytes);
    }
    return keep(std::move(all));
}

void* Arguments::floats(const Json& list) {
    std::vector<char> all;
    for (const Json& value : list) {
        const float one = value.get<float>();
        all.insert(all.end(), reinterpret_cast<const char*>(&one), reinterpret_cast<const char*>(&one + 1));
    }
    return keep(std::move(all));
}

void* Arguments::structs(const std::string& type, const Json& value) {
    std::vector<char> all;
    for (const Json& fields : value.is_array() ? value : Json::array({value})) {
        const std::vector<char> one = element(interface().structs.at(type), fields);
        all.insert(all.end(), one.begin(), one.end());
    }
    return keep(std::move(all));
}

// `more` is by how many bytes the struct says to be larger than that of the headers, and `later` is what stands there.
std::vector<char> Arguments::element(const Struct& layout, const Json& fields) {
    const uint64_t size = layout.size + fields.value("more", uint64_t(0));
    std::vector<char> bytes(size, fields.value("later", '\0'));
    std::fill_n(bytes.begin(), layout.size, '\0');
    if (layout.fields.contains("struct_size")) std::memcpy(bytes.data(), &size, sizeof(uint32_t));
    for (const auto& [name, value] : fields.items()) {
        if (name == "more" || name == "later") continue;
        const Field& at = layout.fields.at(name);
        const uint64_t content = field(at, value);
        std::memcpy(bytes.data() + at.offset, &content, at.size);
    }
    return bytes;
}

uint64_t Arguments::field(const Field& field, const Json& value) {
    if (value.is_structured()) {
        std::string of = field.type.substr(0, field.type.find('*'));
        of = of.substr(of.rfind(' ') + 1);
        if (interface().structs.contains(of)) return reinterpret_cast<uint64_t>(structs(of, value));
        if (of != "char") return reinterpret_cast<uint64_t>(numbers(value, of == "uint32_t" ? 4 : 8));
        std::vector<char> texts;
        for (const Json& one : value) {
            const char* const address = one.is_null() ? nullptr : text(one);
            texts.insert(texts.end(), reinterpret_cast<const char*>(&address),
                         reinterpret_cast<const char*>(&address) + sizeof address);
        }
        return reinterpret_cast<uint64_t>(keep(std::move(texts)));
    }
    if (value.is_string() && field.type == "const char*") return reinterpret_cast<uint64_t>(text(value));
    return number(value);
}

void* Arguments::keep(std::vector<char> bytes) {
    bytes.reserve(1);  // an empty list is not NULL
    before_.push_back(bytes);
    return memory_.emplace_back(std::move(bytes)).data();
}

}  // namespace stagehand::test
