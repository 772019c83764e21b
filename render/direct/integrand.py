"""The terms of the direct-light integral, one small function each, for NVIDIA Warp.

With no bounces an image of the scene is an integral over the pixel filter and three lights;
these functions are its integrand. They run inside kernels, on CPU and GPU, and can be called
from Python one at a time.

Conventions: n, v, l, h are unit vectors (normal, to the viewer, to the light, half way);
`cos_*` their cosines with n. A BRDF term is returned times the cosine at the light.
"""

from __future__ import annotations

import math

import warp as wp

# No banner on standard output: said before the first function is declared, and in the words of
# old and new versions of Warp.
wp.config.quiet = True
if hasattr(wp, "LOG_WARNING"):
    wp.config.log_level = max(wp.config.log_level, wp.LOG_WARNING)

PI = wp.constant(math.pi)
#: Below this a cosine counts as grazing, and the term as 0.
TINY = wp.constant(1.0e-6)


# Constants of 32 bits, named here because a kernel would take them for signed ones.
_MIX_1 = wp.constant(wp.uint32(0x7FEB352D))
_MIX_2 = wp.constant(wp.uint32(0x846CA68B))
_EVERY_8_HIGH = wp.constant(wp.uint32(0xFF00FF00))
_EVERY_8_LOW = wp.constant(wp.uint32(0x00FF00FF))
_EVERY_4_HIGH = wp.constant(wp.uint32(0xF0F0F0F0))
_EVERY_4_LOW = wp.constant(wp.uint32(0x0F0F0F0F))
_EVERY_2_HIGH = wp.constant(wp.uint32(0xCCCCCCCC))
_EVERY_2_LOW = wp.constant(wp.uint32(0x33333333))
_EVERY_1_HIGH = wp.constant(wp.uint32(0xAAAAAAAA))
_EVERY_1_LOW = wp.constant(wp.uint32(0x55555555))
_OWEN_1 = wp.constant(wp.uint32(0x3D20ADEA))
_OWEN_2 = wp.constant(wp.uint32(0x05526C56))
_OWEN_3 = wp.constant(wp.uint32(0x53A22864))
_TOP_BIT = wp.constant(wp.uint32(0x80000000))
_FIRST_OF_PAIR = wp.constant(wp.uint32(0x68BC21EB))
_SECOND_OF_PAIR = wp.constant(wp.uint32(0x02E5BE93))
#: 2^32 over the golden ratio: its multiples lie far apart.
GOLDEN = wp.constant(wp.uint32(0x9E3779B9))


# --- Sample points: scrambled Sobol, which depends on the seed and the pixel alone ---


@wp.func
def mix_bits(x: wp.uint32) -> wp.uint32:
    """A hash of 32 bits in which every bit depends on every other (Wellons' lowbias32)."""
    x = x ^ (x >> wp.uint32(16))
    x = x * _MIX_1
    x = x ^ (x >> wp.uint32(15))
    x = x * _MIX_2
    return x ^ (x >> wp.uint32(16))


@wp.func
def reverse_bits(x: wp.uint32) -> wp.uint32:
    """The 32 bits in opposite order."""
    x = (x >> wp.uint32(16)) | (x << wp.uint32(16))
    x = ((x & _EVERY_8_HIGH) >> wp.uint32(8)) | ((x & _EVERY_8_LOW) << wp.uint32(8))
    x = ((x & _EVERY_4_HIGH) >> wp.uint32(4)) | ((x & _EVERY_4_LOW) << wp.uint32(4))
    x = ((x & _EVERY_2_HIGH) >> wp.uint32(2)) | ((x & _EVERY_2_LOW) << wp.uint32(2))
    return ((x & _EVERY_1_HIGH) >> wp.uint32(1)) | ((x & _EVERY_1_LOW) << wp.uint32(1))


@wp.func
def owen_scramble(x: wp.uint32, seed: wp.uint32) -> wp.uint32:
    """A nested uniform (Owen) scramble of 32 bits by hashing (Burley, JCGT 2020, listing 3)."""
    x = reverse_bits(x)
    x = x ^ (x * _OWEN_1)
    x = x + seed
    x = x * ((seed >> wp.uint32(16)) | wp.uint32(1))
    x = x ^ (x * _OWEN_2)
    x = x ^ (x * _OWEN_3)
    return reverse_bits(x)


@wp.func
def sobol_second(index: wp.uint32) -> wp.uint32:
    """The second dimension of Sobol's sequence; the first is the index, bits reversed."""
    result = wp.uint32(0)
    direction = _TOP_BIT
    rest = index
    while rest != wp.uint32(0):
        if (rest & wp.uint32(1)) != wp.uint32(0):
            result = result ^ direction
        direction = direction ^ (direction >> wp.uint32(1))
        rest = rest >> wp.uint32(1)
    return result


@wp.func
def sample_bits(index: int, pair: int, seed: wp.uint32) -> wp.vec2ui:
    """Point `index` of a (0, 2)-sequence, 32 bits a coordinate; each `pair` is one of its own.

    Sobol's first two dimensions, index shuffled and values scrambled for every pair of
    dimensions (Burley, JCGT 2020, "padding").
    """
    own = mix_bits(seed ^ mix_bits(wp.uint32(pair + 1)))
    shuffled = owen_scramble(wp.uint32(index), own)
    x = owen_scramble(reverse_bits(shuffled), mix_bits(own ^ _FIRST_OF_PAIR))
    y = owen_scramble(sobol_second(shuffled), mix_bits(own ^ _SECOND_OF_PAIR))
    return wp.vec2ui(x, y)


@wp.func
def unit_square(x: wp.uint32, y: wp.uint32) -> wp.vec2:
    """A point of [0, 1)^2 from 32 bits a coordinate: the top 24, exact in float32, below 1."""
    scale = float(1.0 / 16777216.0)
    return wp.vec2(float(x >> wp.uint32(8)) * scale, float(y >> wp.uint32(8)) * scale)


@wp.func
def disk_point(u: wp.vec2) -> wp.vec2:
    """A uniform point of the unit disk from one of the unit square (Shirley and Chiu)."""
    a = 2.0 * u[0] - 1.0
    b = 2.0 * u[1] - 1.0
    radius = a
    angle = float(0.0)
    if wp.abs(a) > wp.abs(b):
        angle = (PI / 4.0) * (b / a)
    else:
        radius = b
        if b != 0.0:
            angle = PI / 2.0 - (PI / 4.0) * (a / b)
    return wp.vec2(radius * wp.cos(angle), radius * wp.sin(angle))


# --- Surfaces ---


@wp.func
def fresnel(cosine: float, ior: float) -> float:
    """Reflectance of a dielectric for unpolarised light coming from outside (Fresnel)."""
    c = wp.abs(cosine)
    g = ior * ior - 1.0 + c * c
    if g <= 0.0:
        return 1.0
    g = wp.sqrt(g)
    a = (g - c) / (g + c)
    b = (c * (g + c) - 1.0) / (c * (g - c) + 1.0)
    return 0.5 * a * a * (1.0 + b * b)


@wp.func
def diffuse(cos_l: float) -> float:
    """Lambert's BRDF times the cosine: cos / pi."""
    return wp.max(cos_l, 0.0) / PI


@wp.func
def velvet(n: wp.vec3, v: wp.vec3, l: wp.vec3, sigma: float) -> float:
    """Ashikhmin's velvet (Ashikhmin, Premoze and Shirley, SIGGRAPH 2000, section 5).

    Its distribution of normals is an inverted Gaussian: most of the surface stands upright.
    """
    cos_v = wp.dot(n, v)
    cos_l = wp.dot(n, l)
    h = wp.normalize(v + l)
    cos_h = wp.dot(n, h)
    cos_vh = wp.abs(wp.dot(v, h))
    if cos_v <= TINY or cos_l <= TINY or cos_vh <= TINY or wp.abs(cos_h) >= 1.0 - TINY:
        return 0.0
    sin2 = 1.0 - cos_h * cos_h
    cot2 = cos_h * cos_h / sin2
    density = wp.exp(-cot2 / (sigma * sigma)) / (PI * sigma * sigma * sin2 * sin2)
    ratio = cos_h / cos_vh
    shadowing = wp.min(1.0, wp.min(2.0 * wp.abs(ratio * cos_v), 2.0 * wp.abs(ratio * cos_l)))
    return density * shadowing / (4.0 * cos_v)


@wp.func
def beckmann_lambda(cosine: float, alpha: float) -> float:
    """Smith's Lambda of a Beckmann surface, rational fit (Walter et al., EGSR 2007, sec. 5.2)."""
    sin2 = wp.max(1.0 - cosine * cosine, 0.0)
    if sin2 <= 0.0:
        return 0.0
    a = cosine / (alpha * wp.sqrt(sin2))
    if a >= 1.6:
        return 0.0
    return (1.0 - 1.259 * a + 0.396 * a * a) / (3.535 * a + 2.181 * a * a)


@wp.func
def beckmann_density(cos_h: float, alpha: float) -> float:
    """Beckmann's distribution of normals (Walter et al., EGSR 2007, eq. 25)."""
    if cos_h <= TINY:
        return 0.0
    cos2 = cos_h * cos_h
    tan2 = (1.0 - cos2) / cos2
    return wp.exp(-tan2 / (alpha * alpha)) / (PI * alpha * alpha * cos2 * cos2)


@wp.func
def beckmann(n: wp.vec3, v: wp.vec3, l: wp.vec3, alpha: float) -> float:
    """A rough mirror, Beckmann normals, reflectance 1 (Walter et al., EGSR 2007, eq. 20)."""
    cos_v = wp.dot(n, v)
    cos_l = wp.dot(n, l)
    if cos_v <= TINY or cos_l <= TINY:
        return 0.0
    density = beckmann_density(wp.dot(n, wp.normalize(v + l)), alpha)
    shadowing = 1.0 / (1.0 + beckmann_lambda(cos_v, alpha) + beckmann_lambda(cos_l, alpha))
    return density * shadowing / (4.0 * cos_v)


@wp.func
def rubber_mix(cos_v: float, back: bool) -> wp.vec2:
    """The Fresnel shares by which the published material mixes coat and velvet in.

    Seen from behind, through an opening of the mesh, the indices of refraction are inverted, as in
    Blender's Fresnel node.
    """
    coat = float(1.2)
    inner = float(1.4)
    if back:
        coat = 1.0 / 1.2
        inner = 1.0 / 1.4
    return wp.vec2(fresnel(cos_v, coat), fresnel(cos_v, inner))


@wp.func
def rubber_terms(n: wp.vec3, v: wp.vec3, l: wp.vec3, mix: wp.vec2) -> wp.vec2:
    """The published material, a glossy coat over diffuse and velvet, mixed by `rubber_mix`.

    Its BRDF times the cosine is the first term times the colour, plus the second.
    """
    under = (1.0 - mix[1]) * diffuse(wp.dot(n, l)) + mix[1] * velvet(n, v, l, 0.6)
    return wp.vec2((1.0 - mix[0]) * under, 0.8 * mix[0] * beckmann(n, v, l, 0.35))


@wp.func
def ggx_density(h: wp.vec3, ax: float, ay: float) -> float:
    """Anisotropic GGX distribution of normals; h in the surface's frame (Heitz 2014, eq. 85)."""
    if h[2] <= TINY:
        return 0.0
    x = h[0] / ax
    y = h[1] / ay
    s = x * x + y * y + h[2] * h[2]
    return 1.0 / (PI * ax * ay * s * s)


@wp.func
def ggx_lambda(w: wp.vec3, ax: float, ay: float) -> float:
    """Smith's Lambda of anisotropic GGX; w in the surface's frame (Heitz 2014, eq. 86)."""
    z2 = w[2] * w[2]
    if z2 <= 0.0:
        return 1.0e10
    a2 = (w[0] * w[0] * ax * ax + w[1] * w[1] * ay * ay) / z2
    return 0.5 * (wp.sqrt(1.0 + a2) - 1.0)


@wp.func
def ggx(v: wp.vec3, l: wp.vec3, ax: float, ay: float) -> float:
    """A rough mirror, GGX normals, reflectance 1; v and l in the surface's frame."""
    if v[2] <= TINY or l[2] <= TINY:
        return 0.0
    h = wp.normalize(v + l)
    shadowing = 1.0 / (1.0 + ggx_lambda(v, ax, ay) + ggx_lambda(l, ax, ay))
    return ggx_density(h, ax, ay) * shadowing / (4.0 * v[2])


@wp.func
def ggx_visible_normal(v: wp.vec3, ax: float, ay: float, u: wp.vec2) -> wp.vec3:
    """A normal drawn from those that v sees (Heitz, JCGT 2018, listing 1)."""
    stretched = wp.normalize(wp.vec3(ax * v[0], ay * v[1], v[2]))
    length2 = stretched[0] * stretched[0] + stretched[1] * stretched[1]
    first = wp.vec3(1.0, 0.0, 0.0)
    if length2 > 0.0:
        first = wp.vec3(-stretched[1], stretched[0], 0.0) / wp.sqrt(length2)
    second = wp.cross(stretched, first)
    radius = wp.sqrt(u[0])
    angle = 2.0 * PI * u[1]
    t1 = radius * wp.cos(angle)
    t2 = radius * wp.sin(angle)
    s = 0.5 * (1.0 + stretched[2])
    t2 = (1.0 - s) * wp.sqrt(wp.max(1.0 - t1 * t1, 0.0)) + s * t2
    up = wp.sqrt(wp.max(1.0 - t1 * t1 - t2 * t2, 0.0))
    normal = t1 * first + t2 * second + up * stretched
    return wp.normalize(wp.vec3(ax * normal[0], ay * normal[1], wp.max(normal[2], 0.0)))


@wp.func
def ggx_visible_pdf(v: wp.vec3, l: wp.vec3, ax: float, ay: float) -> float:
    """Density, per solid angle of l, of reflecting v at a visible normal (Heitz 2018, eq. 17)."""
    if v[2] <= TINY or l[2] <= TINY:
        return 0.0
    h = wp.normalize(v + l)
    return ggx_density(h, ax, ay) / ((1.0 + ggx_lambda(v, ax, ay)) * 4.0 * v[2])


# --- Lights ---


@wp.func
def smoothstep(x: float) -> float:
    """0 below 0, 1 above 1, 3 x^2 - 2 x^3 between."""
    t = wp.clamp(x, 0.0, 1.0)
    return t * t * (3.0 - 2.0 * t)


@wp.func
def spot_falloff(cosine: float, cos_cone: float, blend: float) -> float:
    """The share of a spotlight's intensity that leaves at an angle from its axis."""
    return smoothstep((cosine - cos_cone) / (blend * (1.0 - cos_cone)))
