#include "json_lines.h"

#include <cerrno>
#include <cstdint>
#include <cstring>
#include <fstream>

#include <fmt/format.h>

#include "exit_code.h"
#include "model/text.h"

namespace stagehand::cli {

bool read_json_lines(const std::string& path,
                     const std::function<void(const Json& json, const std::string& where)>& visit) {
    const std::string name = model::printable(path);
    errno = 0;
    std::ifstream file(path, std::ios::binary);
    if (!file) throw CommandError(ExitCode::model, fmt::format("{}: {}", name, std::strerror(errno)));
    std::string text;
    bool visited = false;
    for (std::uint64_t number = 1; std::getline(file, text); ++number) {
        if (text.find_first_not_of(" \t\r") == std::string::npos) continue;
        const bool ended = !file.eof();  // by a newline
        const Json json = Json::parse(text, nullptr, false);
        if (json.is_discarded()) {
            if (!ended && visited) return true;
            throw CommandError(ExitCode::model, fmt::format("{}: line {} is not a JSON object: {}", name, number,
                                                            model::in_quotes(text.substr(0, 40))));
        }
        visit(json, fmt::format("{}: line {}", name, number));
        visited = true;
    }
    if (file.bad()) throw CommandError(ExitCode::model, fmt::format("{}: {}", name, std::strerror(errno)));
    return false;
}

}  // namespace stagehand::cli
