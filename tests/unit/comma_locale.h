// CommaLocale: a locale that writes 1.5 as 1,5 while it lives, as an engine may set one. It is made for the test,
// because few systems have one.
#pragma once

#include <clocale>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <string>

#include <gtest/gtest.h>

namespace stagehand::test {

class CommaLocale {
public:
    CommaLocale() {
        folder_ = testing::TempDir() + "stagehand-locale-XXXXXX";
        if (!mkdtemp(folder_.data())) return;
        std::ofstream(folder_ + "/source")
            << "LC_NUMERIC\ndecimal_point \",\"\nthousands_sep \".\"\ngrouping 3;3\nEND LC_NUMERIC\n";
        const std::string make =
            "localedef -c -i " + folder_ + "/source " + folder_ + "/comma >" + folder_ + "/log 2>&1";
        (void)!std::system(make.c_str());  // it warns of what the source leaves out
        setenv("LOCPATH", folder_.c_str(), 1);
        is_set_ = std::setlocale(LC_NUMERIC, "comma") != nullptr;
        unsetenv("LOCPATH");
    }
    ~CommaLocale() {
        std::setlocale(LC_NUMERIC, "C");
        std::filesystem::remove_all(folder_);
    }
    CommaLocale(const CommaLocale&) = delete;
    CommaLocale& operator=(const CommaLocale&) = delete;

    // False where the system has no localedef, or not the tables that it needs.
    bool is_set() const { return is_set_; }

private:
    std::string folder_;
    bool is_set_ = false;
};

}  // namespace stagehand::test
