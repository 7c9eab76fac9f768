// A small writer of SVG pictures.
#pragma once

#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace stagehand::cli {

struct Point {
    double x = 0;
    double y = 0;
};

// Elements are painted in the order of the calls. Classes of the style sheet determine their appearance.
class SvgPicture {
public:
    // A screen reader reads `description`.
    SvgPicture(double width, double height, std::string_view description, std::string_view style);

    void line(Point from, Point to, std::string_view style_class);
    void polyline(const std::vector<Point>& points, std::string_view style_class);
    void polygon(const std::vector<Point>& points, std::string_view style_class);
    void rectangle(Point corner, double width, double height, std::string_view style_class, double radius = 0);
    // `tip` is shown while the pointer rests on the circle.
    void circle(Point centre, double radius, std::string_view style_class, std::string_view tip = {});
    void text(Point at, std::string_view style_class, std::string_view content);

    // The whole file.
    std::string finish() const { return body_ + "</svg>\n"; }

private:
    std::string body_;
};

}  // namespace stagehand::cli
