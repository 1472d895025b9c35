// What library.txt needs, and what a table cannot say: constructors of vectors, as_type. Between the dialect's words and the table.

// A type at global scope and in metal.
#define GLOBAL(type, name) typedef type name; namespace metal { typedef ::name name; }
#define GLOBAL_VECTOR(type, name, count) typedef type name __attribute__((ext_vector_type(count))); namespace metal { typedef ::name name; }

namespace front {
template <typename A, typename B> struct same { static constant constexpr bool value = false; };
template <typename A> struct same<A, A> { static constant constexpr bool value = true; };
template <bool B> struct when {};
template <> struct when<true> { typedef int type; };

template <typename T> struct shape { typedef T element; static constant constexpr int count = 1; };
template <typename T, int N> struct shape<T __attribute__((ext_vector_type(N)))> { typedef T element; static constant constexpr int count = N; };

template <typename... A> struct components { static constant constexpr int count = 0; };
template <typename A, typename... B> struct components<A, B...> { static constant constexpr int count = shape<A>::count + components<B...>::count; };

// Whether all vectors among the parts have one element type.
template <typename E, typename... A> struct alike { static constant constexpr bool value = true; };
template <typename E, typename A, typename... B> struct alike<E, A, B...> {
    static constant constexpr bool value = (shape<A>::count == 1 || same<typename shape<A>::element, E>::value) && alike<E, B...>::value;
};

// 2.2: a vector of a scalar, of a vector with as many components, or of parts with as many components together.
template <typename V, typename... A> V vector(A...) {
    constexpr int parts = sizeof...(A), found = components<A...>::count;
    static_assert(parts > 0, "a vector of nothing");
    static_assert((parts == 1 && found == 1) || found == shape<V>::count, "wrong number of components for a vector");
    static_assert(parts == 1 || alike<typename shape<V>::element, A...>::value, "part of a vector with another element type");
    return V{};
}

// 6.9.2: the types that SIMD-group functions take.
template <typename T> struct exchanged {
    typedef typename shape<T>::element E;
    static constant constexpr bool integer = same<E, char>::value || same<E, unsigned char>::value || same<E, short>::value ||
        same<E, unsigned short>::value || same<E, int>::value || same<E, unsigned int>::value;
    static constant constexpr bool value = (integer || same<E, half>::value || same<E, float>::value) && shape<T>::count <= 4;
};
}
#define EXCHANGED template <typename T, typename front::when<front::exchanged<T>::value>::type = 0>
#define EXCHANGED_INTEGER template <typename T, typename front::when<front::exchanged<T>::value && front::exchanged<T>::integer>::type = 0>

// 2.4, 6.7
#define SIMDGROUP_MATRIX \
    static_assert(front::same<T, half>::value || front::same<T, float>::value, "no such element of a SIMD-group matrix"); \
    static_assert(C == 8 && R == 8, "no such size of a SIMD-group matrix"); \
    simdgroup_matrix() = default; \
    explicit simdgroup_matrix(T diagonal);
#define MATRICES typename D, typename A, typename B, int C, int R, int K
#define PLACE ulong elements_per_row = C, ulong2 origin = 0, bool transpose = false

// 2.20
template <typename T, typename U> T as_type(U) {
    static_assert(sizeof(T) == sizeof(U), "as_type of another size");
    return T{};
}
