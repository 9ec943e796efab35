// Marks the C symbols of the library; everything else is hidden.
#pragma once

#define JFI_EXPORT extern "C" __attribute__((visibility("default")))
