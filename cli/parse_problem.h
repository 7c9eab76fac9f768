// Messages about mistakes on the command line, in the command's own words. The option parser's texts name neither the
// value that was given nor what would be right.
#pragma once

#include <string>

namespace CLI {
class App;
class ParseError;
}  // namespace CLI

namespace stagehand::cli {

// The message for an error that the parser has thrown while it read the arguments of `app`, the subcommand.
std::string problem_of(const CLI::ParseError& error, const CLI::App& app);

}  // namespace stagehand::cli
