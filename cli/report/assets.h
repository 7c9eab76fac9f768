// Texts that the build puts into the command: the page's style and script, and the plotting library.
#pragma once

#include <string_view>

namespace stagehand::cli {

extern const std::string_view page_style;
extern const std::string_view page_script;
extern const std::string_view plotting_script;
extern const std::string_view plotting_version;
extern const std::string_view plotting_licence;

}  // namespace stagehand::cli
