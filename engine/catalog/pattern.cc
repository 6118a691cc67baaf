#include "engine/catalog/pattern.h"
