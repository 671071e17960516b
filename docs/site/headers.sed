# In comments these words are not the classes of these names; a sentence's first word may not be.
/^ *\/\/\//s/(^|[^`:A-Za-z])(Collective|Range)([.,:; ])/\1%\2\3/g
s/^( *\/\/\/<? )(Options|State)([ ,])/\1%\2\3/
# Explicit specialisations: their templates say what they are for.
/^template <>$/,/^};$/d
# A type that only a compiler can work out.
s/= typename decltype\(.*\)::Options;/= unspecified;/
