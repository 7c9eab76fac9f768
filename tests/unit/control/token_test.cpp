#include "control/token.h"

#include <string>
#include <vector>

#include <gtest/gtest.h>

namespace stagehand::control {
namespace {

const std::string kToken = "0123456789abcdef";

TEST(ControlToken, IsLongEnoughAndVisible) {
    EXPECT_TRUE(check_token(kToken).ok());
    EXPECT_TRUE(check_token(std::string(256, '~')).ok());
    for (const std::string& token :
         {std::string(), kToken.substr(1), std::string(257, 'x'), kToken + " ", kToken + "\n", kToken + "\x7f",
          kToken + "\xc3\xa4", std::string("0123456789\0abcdef", 17)}) {
        const Status status = check_token(token);
        EXPECT_EQ(status.code(), SH_ERROR_INVALID_ARGUMENT) << token;
        EXPECT_EQ(std::string(status.text()).find("0123456789"), std::string::npos) << "the text tells the token";
    }
}

TEST(ControlToken, OnlyTheTokenItselfIsTheToken) {
    for (const std::string& header : {"Bearer " + kToken, "bearer " + kToken, "BEARER " + kToken})
        EXPECT_TRUE(has_token(header, kToken)) << header;
    for (const std::string& header :
         std::vector<std::string>{std::string(), kToken, "Bearer", std::string("Bearer "), "Bearer " + kToken.substr(1),
                                  "Bearer " + kToken + "0", "Bearer  " + kToken, "Bearer " + kToken + kToken,
                                  "Basic " + kToken, "Bearer 0123456789abcdeF", "Bearer " + std::string(16, '\0')})
        EXPECT_FALSE(has_token(header, kToken)) << header;
    for (size_t i = 0; i < kToken.size(); i++) {
        std::string other = kToken;
        other[i] = static_cast<char>(other[i] ^ 1);
        EXPECT_FALSE(has_token("Bearer " + other, kToken)) << i;
    }
    EXPECT_FALSE(has_token("Bearer ", "")) << "no token is no empty token";
}

}  // namespace
}  // namespace stagehand::control
