#include "engine/catalog/matrix.h"
