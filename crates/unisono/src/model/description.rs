//! The macro that makes layers of this library known: `layers!`, called once, in `layers/mod.rs`.

/// What a layer's entry in an exported model holds.
///
/// A layer that can be cloned is its own settings, without another line of code. A container, whose inner
/// layers may be a user's own and so have no description, writes this by hand.
pub(crate) trait Describe<Settings> {
    /// Returns the settings, or `None` where a layer inside has no description.
    fn settings(&self) -> Option<Settings>;
}

impl<L: Clone> Describe<L> for L {
    fn settings(&self) -> Option<L> {
        Some(self.clone())
    }
}

/// The type of a layer's settings: the layer itself, or the type named after `as`.
macro_rules! settings {
    ($layer:ident) => {
        $layer
    };
    ($layer:ident $settings:ident) => {
        $settings
    };
}

/// Makes a [`Layer`](crate::Layer) of each type in the list, and [`Description`](crate::Description) of all
/// of them.
///
/// An entry is `file::Type = "name": example`. The name stands in summaries, errors and exported models: it
/// is part of the file format and never changes. The example has settings that are not the defaults; tests
/// hold it to its description. A container adds `as Settings` behind its type: see [`Describe`].
macro_rules! layers {
    ($($file:ident::$layer:ident $(as $settings:ident)? = $name:literal: $example:expr,)+) => {
        $(
            pub use $file::$layer;
            $(pub use $file::$settings;)?
        )+

        /// What a model computes, as data: [`Layer::description`](crate::Layer::description). In JSON it is
        /// an object with the layer's name and its settings.
        ///
        /// Initializers are not part of it, because weights come from a file: a model that is built again has
        /// its layers' default initializers.
        ///
        /// ```
        /// use unisono::{Dense, Description, Layer, Relu, Sequential};
        ///
        /// let model = Sequential::new().add(Dense::new(64)).add(Relu);
        /// let json = serde_json::to_string(&model.description())?;
        /// let layers = r#"[{"layer":"dense","units":64,"input":null,"bias":true},{"layer":"relu"}]"#;
        /// assert_eq!(json, format!(r#"{{"layer":"sequential","layers":{layers}}}"#));
        /// let again = serde_json::from_str::<Description>(&json)?.layer();
        /// assert_eq!(again.name(), "sequential");
        /// # Ok::<(), serde_json::Error>(())
        /// ```
        #[derive(Clone, Debug, serde::Serialize, serde::Deserialize)]
        #[serde(tag = "layer")]
        #[non_exhaustive]
        pub enum Description {
            $(
                #[doc = concat!("Describes [`", stringify!($layer), "`], in JSON `", $name, "`.")]
                #[serde(rename = $name)]
                $layer($crate::model::description::settings!($layer $($settings)?)),
            )+
        }

        impl Description {
            /// Builds the layer.
            pub fn layer(self) -> Box<dyn $crate::model::Layer> {
                match self {
                    $(Self::$layer(settings) => Box::new($layer::from(settings)),)+
                }
            }
        }

        $(
            impl $crate::model::Layer for $layer {
                fn name(&self) -> &str {
                    $name
                }

                fn forward(
                    &self,
                    cx: &mut $crate::model::Context,
                    x: &unisono_graph::Var,
                ) -> unisono_graph::Var {
                    $crate::model::Forward::forward(self, cx, x)
                }

                fn description(&self) -> Option<Description> {
                    $crate::model::description::Describe::settings(self).map(Description::$layer)
                }
            }
        )+

        /// An example of each layer in the list, by name.
        #[cfg(test)]
        pub(crate) fn examples() -> Vec<(&'static str, Box<dyn $crate::model::Layer>)> {
            vec![$(($name, Box::new($example))),+]
        }
    };
}

pub(crate) use {layers, settings};

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use crate::model::layers::examples;
    use crate::{Description, FromFn, Layer, Recompute, Relu, Sequential};

    /// The layers of version 0.1.0 as that version wrote them.
    const WRITTEN: &str = include_str!("written_by_0.1.0.json");

    fn value(layer: &dyn Layer) -> serde_json::Value {
        serde_json::to_value(layer.description().expect("the library knows its layers")).unwrap()
    }

    #[test]
    fn every_layer_of_the_list_comes_back_with_its_settings() {
        for (name, layer) in examples() {
            let json = value(&*layer);
            assert_eq!((layer.name(), &json["layer"]), (name, &name.into()));
            let description: Description = serde_json::from_value(json.clone()).unwrap();
            // Debug shows what JSON leaves out, so that a setting that is skipped is seen.
            assert_eq!(format!("{:?}", description), format!("{:?}", layer.description().unwrap()));
            assert_eq!(value(&*description.layer()), json, "{name}");
        }
    }

    #[test]
    fn no_two_layers_have_one_name() {
        let names: BTreeSet<&str> = examples().iter().map(|(name, _)| *name).collect();
        assert_eq!(names.len(), examples().len());
    }

    #[test]
    fn what_the_first_version_wrote_is_read_and_written_byte_by_byte() {
        let lines = WRITTEN.lines().map(|line| line.trim().trim_end_matches(',')).filter(|l| l.len() > 1);
        let written: Vec<&str> = lines.collect();
        for json in &written {
            let description: Description = serde_json::from_str(json).unwrap();
            let again = serde_json::to_string(&description.layer().description().unwrap()).unwrap();
            assert_eq!(again, *json);
        }
        assert_eq!(written.len(), 29);
    }

    #[test]
    fn wrappers_are_described_by_what_they_hold() {
        let boxed: Box<dyn Layer> = Box::new(Recompute::new(Relu));
        assert_eq!(value(&boxed), serde_json::json!({"layer": "relu"}));
    }

    #[test]
    fn unknown_layers_and_settings_are_errors() {
        for json in [
            r#"{"layer": "dense", "units": 7, "input": null, "bias": true, "activation": "relu"}"#,
            r#"{"layer": "conv7d"}"#,
            r#"{"layer": "dense"}"#,
            r#"{"layer": "sequential", "layers": [{}]}"#,
        ] {
            assert!(serde_json::from_str::<Description>(json).is_err(), "{json}");
        }
        let custom = FromFn::new("own", |_, x| x.clone());
        assert!(Sequential::new().add(Relu).add(custom).description().is_none());
    }
}
