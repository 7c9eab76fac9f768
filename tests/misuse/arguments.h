// Arguments of the C interface from JSON: numbers, texts, structs by the names of their fields, and values of a world
// by their names.
#pragma once

#include <cstdint>
#include <deque>
#include <map>
#include <stdexcept>
#include <string>
#include <type_traits>
#include <typeinfo>
#include <utility>
#include <vector>

#include <nlohmann/json.hpp>

namespace stagehand::test {

using Json = nlohmann::json;

// What a row has made so far, by name: handles, blocks, addresses. The constants of the headers are in it, too.
using World = std::map<std::string, uint64_t>;

// The constants, the structs and the functions of the headers, as tests/abi/snapshot.txt has them.
struct Field {
    uint64_t offset, size;
    std::string type;
};
struct Struct {
    uint64_t size;
    std::map<std::string, Field> fields;
};
struct Interface {
    World constants;
    std::map<std::string, Struct> structs;
    std::vector<std::string> functions;
};
const Interface& interface();

// Handles are pointers to structs that the headers do not define.
template <class T>
concept Opaque = std::is_void_v<T> || std::is_function_v<T> || !requires {
    sizeof(T);
};

class Arguments {
public:
    Arguments(World& world, const Json& values) : world_(world), values_(values) {}

    size_t size() const { return values_.size(); }
    const Json& json(size_t index) const { return values_.at(index); }

    template <class T>
    T get(size_t index) {
        const Json& value = values_.at(index);
        if constexpr (std::is_integral_v<T>) {
            return static_cast<T>(number(value));
        } else {
            using Pointee = std::remove_cv_t<std::remove_pointer_t<T>>;
            if (value.is_null()) return nullptr;
            if constexpr (std::is_same_v<T, const char*>) {
                return text(value);
            } else if constexpr (Opaque<Pointee>) {
                return reinterpret_cast<T>(number(value));
            } else if constexpr (std::is_class_v<Pointee>) {
                return reinterpret_cast<T>(structs(name_of(typeid(Pointee)), value));
            } else if constexpr (std::is_same_v<Pointee, float>) {
                return reinterpret_cast<T>(floats(value));
            } else if (value.is_array()) {
                return reinterpret_cast<T>(numbers(value, sizeof(Pointee)));
            } else {
                return reinterpret_cast<T>(output(value.get<std::string>()));
            }
        }
    }
    // Whether a call has written to none of them.
    bool are_unchanged() const;

private:
    static std::string name_of(const std::type_info& type);
    uint64_t number(const Json& value) const;
    const char* text(const Json& value);
    void* output(const std::string& name);
    void* numbers(const Json& list, size_t bytes);
    void* floats(const Json& list);
    void* structs(const std::string& type, const Json& value);
    std::vector<char> element(const Struct& layout, const Json& fields);
    uint64_t field(const Field& field, const Json& value);
    void* keep(std::vector<char> bytes);

    World& world_;
    const Json& values_;
    std::deque<std::vector<char>> memory_, before_;
    std::vector<std::pair<const uint64_t*, uint64_t>> outputs_;
};

}  // namespace stagehand::test
